"""Index of run folders, with one entry per run. Only small files are read, so that hundreds of runs are listed fast."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fenchel.common.errors import CheckpointError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.report.files import flat, read_summary, read_text, values_of

DAMAGED = "damaged"
"""State of run folders that cannot be read."""

_STAMP = re.compile(r"\d{8}-\d{6}(?=-)")
_TOP = re.compile(r"^(?:name|seed|rounds|clients|algorithm|data):.*$", re.MULTILINE)
_SEED = re.compile(r"^seed:.*$", re.MULTILINE)
_SWEEP = re.compile(r"-sweep-[0-9a-f]{4}$")
_NAMED = re.compile(r"^  (?:name|file): .*(?:\n(?: {4}.*)?$)*", re.MULTILINE)
"""A name or file of a section, with the further lines of a long one."""
_SECTION = r"^{}:\n((?:[ ].*\n?)*)"
_QUALITY = ("test_accuracy", "holdout_accuracy", "train_accuracy")
_OBJECTIVE = ("objective", "primal_objective")


@dataclass(frozen=True)
class IndexEntry:
    """Run in the index. Unknown fields are ``None``.

    Attributes
    ----------
    id
        Name of the folder.
    path
        Path of the folder.
    state
        Completed, stopped, unfinished or damaged.
    started
        Start time, in seconds since 1970; 0 if unknown.
    reason
        Description of the damage, or the reason why a run ended early.
    name, algorithm, data, clients, seed
        Values in the settings.
    grid
        Settings besides the seed in which the runs of a sweep differ, by dotted key; empty for other runs.
    rounds
        Number of completed rounds.
    planned
        Number of rounds in the settings.
    objective, accuracy
        Last known objective and accuracy; the objective may be infinite.
    """

    id: str
    path: str
    state: str
    started: float
    reason: str = ""
    name: str | None = None
    algorithm: str | None = None
    data: str | None = None
    clients: int | str | None = None
    seed: int | None = None
    grid: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    planned: int | None = None
    objective: float | None = None
    accuracy: float | None = None


def index(folder: Path) -> list[IndexEntry]:
    """Return the entries of the runs in a folder, the newest first, also of those that began in the same second.

    Raises
    ------
    CheckpointError
        If there is no such folder.
    """
    folders = list(run_folders(folder))
    grids = _grids(folders)
    entries = [(replace(_entry(each), grid=grids.get(each.path, {})), _written(each.settings)) for each in folders]
    entries.sort(key=lambda pair: (-pair[0].started, -pair[1], pair[0].id))
    return [entry for entry, _ in entries]


def run_folders(folder: Path) -> Iterator[RunFolder]:
    """Yield the run folders in a folder and in its sweeps, or the folder itself if it is a run folder.

    Raises
    ------
    CheckpointError
        If there is no such folder.
    """
    if not folder.is_dir():
        raise CheckpointError("the folder of runs does not exist; check the path", source=folder)
    if _is_run(folder):
        yield RunFolder(folder)
        return
    for path in _inside(folder):
        if _is_run(path):
            yield RunFolder(path)
        else:
            yield from (RunFolder(inner) for inner in _inside(path) if _is_run(inner))


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:  # an unreadable folder may itself be a run folder
        return []


def _is_run(path: Path) -> bool:
    """Return True if a folder has any file that only run folders have, or cannot be read."""
    folder = RunFolder(path)
    try:
        return any(
            part.exists() for part in (folder.settings, folder.summary, folder.metrics, folder.checkpoint.parent)
        )
    except OSError:
        return True  # list an unreadable folder as a damaged run


def _entry(folder: RunFolder) -> IndexEntry:
    known: dict[str, Any] = {"id": folder.id, "path": str(folder.path), "started": _started(folder)}
    try:
        known |= _settings(folder.settings)
        return IndexEntry(**known | _ending(folder))
    except CheckpointError as error:
        return IndexEntry(**known, state=DAMAGED, reason=f"{Path(error.source).name}: {error.problem}")


def _started(folder: RunFolder) -> float:
    """Return the time in the folder's name, or otherwise the time of the folder's last change; 0 if unknown."""
    try:
        if stamp := _STAMP.match(folder.id):
            return time.mktime(time.strptime(stamp[0], "%Y%m%d-%H%M%S"))
        return folder.path.stat().st_mtime
    except (OSError, ValueError, OverflowError):
        return 0.0


def _written(path: Path) -> int:
    """Return the time at which a file was written, in nanoseconds since 1970; 0 if unknown."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _grids(folders: Sequence[RunFolder]) -> dict[Path, dict[str, Any]]:
    """Return the settings besides the seed in which the runs of each sweep differ, by run folder."""
    sweeps: dict[Path, dict[Path, str]] = {}
    for folder in folders:
        parent = folder.path.absolute().parent
        if _SWEEP.search(parent.name):
            with suppress(CheckpointError):  # the entry of a damaged folder has the reason
                sweeps.setdefault(parent, {})[folder.path] = _SEED.sub("", read_text(folder.settings))
    found = {}
    for texts in sweeps.values():
        parsed: dict[str, dict[str, Any]] = {}  # of each text once, because parsing takes milliseconds
        for path, text in texts.items() if len(set(texts.values())) > 1 else ():
            if text not in parsed:
                with suppress(CheckpointError):
                    parsed[text] = flat(values_of(text, path))
        keys = dict.fromkeys(key for values in parsed.values() for key in values)
        differing = [key for key in keys if len({repr(values.get(key)) for values in parsed.values()}) > 1]
        for path, text in texts.items():
            values = parsed.get(text, {})
            found[path] = {key: values[key] for key in differing if key in values}
    return found


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings that the index shows."""
    given = values_of(_excerpt(read_text(path)), path)
    algorithm, data = given.get("algorithm"), given.get("data")
    if not (isinstance(algorithm, dict) and isinstance(data, dict) and isinstance(given.get("rounds"), int)):
        raise CheckpointError(
            "the file lacks rounds, algorithm or data, so it is damaged; copy the run folder again", source=path
        )
    found = {"name": given.get("name"), "algorithm": algorithm.get("name"), "data": data.get("name")}
    if found["data"] is None and data.get("file") is not None:
        file = Path(str(data["file"]))
        given_from_python = file.parts[-3:-1] == (path.parent.name, RunFolder(path.parent).data.name)
        found["data"] = "from Python" if given_from_python else file.name
    texts = {key: None if value is None else str(value) for key, value in found.items()}
    return texts | {"clients": given.get("clients"), "seed": given.get("seed"), "planned": given["rounds"]}


def _excerpt(text: str) -> str:
    """Return the lines of a settings file that the index needs, or the whole text if it has another layout.

    Parsing a whole file takes ten times as long.
    """
    lines = []
    for line in _TOP.findall(text):
        key = line.partition(":")[0]
        lines.append(line)
        if line == f"{key}:":
            section = re.search(_SECTION.format(key), text, re.MULTILINE)
            named = _NAMED.findall(section[1]) if section else []
            if not named:
                return text
            lines += named
        elif key in ("algorithm", "data"):
            return text
    return "\n".join(lines) if {"rounds", "algorithm", "data"} <= {line.partition(":")[0] for line in lines} else text


def _ending(folder: RunFolder) -> dict[str, Any]:
    """Return state, number of rounds and last figures of a run."""
    summary = read_summary(folder.summary)
    if summary is None:
        return {"state": "unfinished"} | _so_far(folder)
    if not {"rounds", "figures"} <= summary.keys():
        raise CheckpointError(
            "the file lacks rounds or figures, so it is damaged; copy the run folder again", source=folder.summary
        )
    state = "completed" if summary.get("completed") is True else "stopped"
    return {"state": state, "reason": str(summary.get("reason") or ""), "rounds": summary["rounds"]} | _last(
        summary["figures"]
    )


def _so_far(folder: RunFolder) -> dict[str, Any]:
    """Return number of rounds and last figures of a run without a summary, from its table of rounds."""
    from fenchel.common.storage import tables

    growing = folder.metrics.with_suffix(".arrows")
    if not tables.exists(folder.metrics) or (growing.exists() and not growing.stat().st_size):
        return {"rounds": 0}
    table = tables.read(folder.metrics)
    figures: dict[str, Any] = {}
    for name in {*_QUALITY, *_OBJECTIVE} & set(table.column_names):
        known = [value for value in table[name].to_pylist() if isinstance(value, float) and not math.isnan(value)]
        figures |= {name: known[-1]} if known else {}
    return {"rounds": table.num_rows} | _last(figures)


def _last(figures: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in figures.items() if isinstance(value, int | float) and not math.isnan(value)}
    found = {"objective": _OBJECTIVE, "accuracy": _QUALITY}
    return {key: next((known[name] for name in names if name in known), None) for key, names in found.items()}
