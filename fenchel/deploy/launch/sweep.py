"""Sweeps: a run for each combination of seeds and values of other settings."""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fenchel.common.errors import FenchelError, SettingsError, StorageError
from fenchel.common.settings.run import RunSettings, change, validate
from fenchel.common.settings.section import yaml_value
from fenchel.report.formatting import changes_text
from fenchel.report.index import run_folders

if TYPE_CHECKING:
    from fenchel.report.run import Run

MOST_RUNS = 10_000
"""Largest number of runs in a sweep."""

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepPoint:
    """Run of a sweep before its start.

    Attributes
    ----------
    changes
        Values that replace those in the settings, by dotted key.
    settings
        Checked settings of the run.
    """

    changes: Mapping[str, Any]
    settings: RunSettings

    @property
    def label(self) -> str:
        """Text of the changes, such as ``step_size=0.1 seed=3``."""
        return changes_text(self.changes)


@dataclass(frozen=True)
class SweepResult:
    """Result of a run of a sweep.

    Attributes
    ----------
    path
        Run folder, of the earlier run if this run was skipped; ``None`` if the run has not begun.
    error
        Error that stopped the run; ``None`` for a completed run.
    skipped
        True if the run was skipped because an earlier run has equal settings.
    """

    point: SweepPoint
    path: Path | None
    error: FenchelError | None = None
    skipped: bool = False


def parse_seeds(text: str) -> list[int]:
    """Parse a list of seeds such as ``1..5``, ``1,4,7`` or ``1..3,7``, or raise a SettingsError."""
    seeds: list[int] = []
    for part in text.split(","):
        if span := _RANGE.fullmatch(part.strip()):
            first, last = int(span[1]), int(span[2])
            if last < first or last - first >= MOST_RUNS:
                raise SettingsError(
                    f"{part} is not a range of 1 to {MOST_RUNS:,} seeds; give one such as 1..5", key="--seeds"
                )
            seeds += range(first, last + 1)
        elif part.strip().isdecimal():
            seeds.append(int(part))
        else:
            raise SettingsError(f"{text!r} are not seeds; give them as 1..5 or 1,4,7", key="--seeds")
    return seeds


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parse arguments of the form ``KEY=V1,V2`` to the YAML values of each key, or raise a SettingsError."""
    grid: dict[str, list[Any]] = {}
    for word in words:
        key, separator, text = word.partition("=")
        try:
            values = yaml_value(f"[{text}]") if separator and key and text.strip() else None
        except yaml.YAMLError:
            values = None
        if not values:
            raise SettingsError(
                "not of the form KEY=V1,V2 with values in YAML, such as algorithm.step_size=0.1,0.3",
                key=f"--grid {word}",
            )
        if key in grid:
            raise SettingsError("the key is given twice; give all its values at once", key=f"--grid {key}")
        grid[key] = values
    return grid


def sweep_points(
    values: Mapping[str, Any],
    source: str,
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[Any]],
    check: Callable[[RunSettings], None] = lambda settings: None,
) -> list[SweepPoint]:
    """Return the runs of a sweep, ordered by combination and then by seed.

    Parameters
    ----------
    values
        Settings before validation.
    source
        Origin of the settings, for errors.
    seeds
        Seeds of the runs; an empty sequence selects the seed in the settings.
    grid
        Values by dotted key.
    check
        Further check of the settings of each run, which raises a ``FenchelError`` if the run is impossible.

    Raises
    ------
    SettingsError
        If two runs have the same settings, the seeds are given twice, or the sweep has no run or more than
        :data:`MOST_RUNS`.
    FenchelError
        If the settings of a run are invalid: the error of the first such run.
    """
    if seeds and "seed" in grid:
        raise SettingsError(
            "the grid has seeds, and further seeds are given; give all seeds in one of the two places", key="seed"
        )
    axes = {**grid, **({"seed": seeds} if seeds else {})}
    number = math.prod(map(len, axes.values()))
    if not 0 < number <= MOST_RUNS:
        raise SettingsError(f"the sweep has {number:,} runs; expected 1 to {MOST_RUNS:,}", key=", ".join(axes))
    points = [_point(values, source, dict(zip(axes, each, strict=True)), check) for each in product(*axes.values())]
    if len({point.settings.model_dump_json() for point in points}) < len(points):
        raise SettingsError("two runs would have the same settings; give each value once", key=", ".join(axes))
    return points


def _point(
    values: Mapping[str, Any], source: str, changes: Mapping[str, Any], check: Callable[[RunSettings], None]
) -> SweepPoint:
    changed = deepcopy(dict(values))
    change(changed, changes)
    settings = validate(changed, source)
    check(settings)
    return SweepPoint(changes, settings)


def create_sweep_folder(parent: Path, name: str) -> Path:
    """Create a folder below ``parent`` for the run folders of a new sweep, or raise a StorageError."""
    path = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-sweep-{secrets.token_hex(2)}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise StorageError(
            f"no sweep folder can be created in this folder ({error.strerror}); make room on the disk, make the "
            "folder writable, or choose another one",
            source=parent,
        ) from None
    return path


def completed_runs(parent: Path) -> dict[str, Path]:
    """Return the folders of the completed runs below a folder, by the runs' settings in YAML."""
    from fenchel.report.run import Run

    found = {}
    for folder in run_folders(parent) if parent.is_dir() else ():
        with suppress(FenchelError):  # skip damaged run folders
            run = Run(folder.path)
            if run.completed:
                found[run.settings_text] = folder.path
    return found


def do_sweep(
    points: Sequence[SweepPoint], folder: Path, do: Callable[[int, RunSettings], object], done: Mapping[str, Path]
) -> Iterator[SweepResult]:
    """Execute the runs of a sweep one after another, and yield each result.

    The sweep goes on after a failed run, except after a ``StorageError``.

    Parameters
    ----------
    points
        Runs of the sweep.
    folder
        Folder of the sweep.
    do
        Function that takes the number and the settings of a run, and executes the run in a new folder below ``folder``.
    done
        Folders of completed runs, by their settings in YAML. Runs with equal settings are skipped.

    Raises
    ------
    StorageError
        If a run cannot write its files.
    """
    try:
        for number, point in enumerate(points):
            if (earlier := done.get(point.settings.anchored().to_yaml())) is not None:
                yield SweepResult(point, earlier, skipped=True)
            else:
                before, error = set(folder.iterdir()), None
                try:
                    do(number, point.settings)
                except StorageError:
                    raise  # a full disk would fail all further runs as well
                except FenchelError as failure:
                    error = failure
                yield SweepResult(point, next(iter(set(folder.iterdir()) - before), None), error)
    finally:
        with suppress(OSError):  # rmdir fails, as intended, unless the folder is empty
            folder.rmdir()


def sweep(
    settings: str | Path | Mapping[str, Any] | RunSettings,
    *,
    seeds: Sequence[int] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    overrides: Sequence[str] = (),
    runs: str | Path = "runs",
    **options: Any,
) -> list[Run]:
    """Run all combinations of seeds and other settings, one after another.

    The command ``fenchel up --seeds --grid`` does the same. The sweep goes on after a failed run, unless a file of the
    run cannot be written.

    Parameters
    ----------
    settings : str, pathlib.Path, mapping or RunSettings
        A YAML file, the name of a shipped experiment, a mapping of the same form, or validated settings.
    seeds : sequence of int, default ()
        Seeds of the runs. By default the seed in the settings.
    grid : mapping of str to sequence, optional
        Values by dotted key, such as ``{"algorithm.step_size": [0.1, 0.3]}``.
    overrides : sequence of str, default ()
        Changes of a settings file, as for :func:`fenchel.up`.
    runs : str or pathlib.Path, default "runs"
        Folder in which the folder of the sweep is created.
    **options
        Further keyword arguments of :func:`fenchel.up`. ``progress`` is ``False`` by default.

    Returns
    -------
    list of Run
        The runs that have begun, in order. :attr:`fenchel.Run.state` and :attr:`fenchel.Run.reason` describe those that
        stopped early.

    Raises
    ------
    SettingsError
        If an argument is not a list, a value occurs twice, there are more than 10,000 combinations or none, or the
        settings of a combination are invalid. No run has begun then.
    FenchelError
        If a file or folder cannot be written.

    Examples
    --------
    Six runs, and the final objective of each::

        import fenchel

        runs = fenchel.sweep("quickstart", seeds=[1, 2, 3], grid={"algorithm.step_size": [0.1, 0.3]})
        for run in runs:
            print(run.settings.seed, run.settings.algorithm.step_size, run.figures["objective"])
    """
    for key, given in {"seeds": seeds, **(grid or {})}.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise SettingsError(f"{given!r} is not a list; give a list, such as [{given!r}]", key=key)
    from fenchel.deploy.launch.up import up, values_and_source
    from fenchel.report.run import Run

    values, source = values_and_source(settings, overrides)
    points = sweep_points(values, source, seeds, grid or {})
    folder = create_sweep_folder(Path(runs), points[0].settings.name)
    found: list[Run] = []
    quiet = {"progress": False}
    for result in do_sweep(points, folder, lambda _, chosen: up(chosen, runs=folder, **quiet | options), {}):
        if result.error is not None:
            _log.warning("the run with %s is not complete: %s", result.point.label, result.error)
        if result.path is not None:
            found.append(Run(result.path))
    return found
