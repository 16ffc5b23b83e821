"""The trials of a search side by side: which were dropped, which are on the front, which one is chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.tuning import Selection
from fenchel.report import columns
from fenchel.report.formatting import UNKNOWN, count_text, number_text, plain, seconds_text, share_text
from fenchel.report.render.terminal import setting_text
from fenchel.report.run import Run
from fenchel.report.tuning.criteria import Criteria, accuracy_column, criteria, divergence, loss_column, names
from fenchel.report.tuning.selection import Floats, Selected, choose


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    number: int  # counted from 0
    parameters: Mapping[str, Any]  # what was drawn: dotted key of a setting, value
    run: Path | None  # its folder; ``None`` where the run failed before it had one
    error: str = ""  # why the run failed; empty if it did not


@dataclass(frozen=True)
class Judged:
    """A trial with what became of it."""

    trial: Trial  # which
    criteria: Criteria | None  # its figures; ``None`` if it was dropped
    reason: str  # why it was dropped; empty if it was not

    @property
    def state(self) -> str:
        """``finished``, ``failed`` or ``diverged``."""
        return "failed" if self.trial.error else "diverged" if self.reason else "finished"


@dataclass(frozen=True)
class Verdict:
    """All trials, judged."""

    trials: tuple[Judged, ...]  # in the order of their numbers
    names: tuple[str, ...]  # of the criteria
    used: tuple[bool, ...]  # which criteria were compared: those that the trials have, shape (m,), bool
    loss: str  # loss, accuracy: columns of ``metrics.parquet``; empty where there is none
    accuracy: str
    choice: Selected | None  # among the trials that were not dropped; ``None`` if there is none

    @property
    def compared(self) -> list[Judged]:
        """The trials that were not dropped; the rows of :attr:`choice`."""
        return [judged for judged in self.trials if judged.criteria is not None]

    @property
    def best(self) -> Trial | None:
        """The chosen trial; ``None`` if all were dropped."""
        return None if self.choice is None else self.compared[self.choice.best].trial

    def on_front(self) -> dict[int, float]:
        """Return the grade of each trial on the Pareto front, by the trial's number."""
        if self.choice is None:
            return {}
        return {
            judged.trial.number: float(grade)
            for judged, grade in zip(self.compared, self.choice.grades, strict=True)
            if not math.isnan(grade)
        }


def judge(trials: Sequence[Trial], selection: Selection) -> Verdict:
    """Drop what failed or diverged, and choose among the rest.

    trials: each with the folder of its run, unless it failed.
    """
    runs = {trial.number: _run_of(trial) for trial in trials if not trial.error}
    criteria_names = tuple(names(selection.latencies))
    if not runs:
        dropped = tuple(Judged(trial, None, trial.error) for trial in trials)
        return Verdict(dropped, criteria_names, (False,) * len(criteria_names), "", "", None)
    loss = loss_column(list(runs.values()), selection.loss)
    accuracy = accuracy_column(list(runs.values()), selection.accuracy)
    judged = []
    for trial in trials:
        reason = trial.error or divergence(runs[trial.number], loss, selection)
        figures = None if reason else criteria(runs[trial.number], loss, accuracy, selection)
        judged.append(Judged(trial, figures, reason))
    costs = np.array([each.criteria.costs() for each in judged if each.criteria], np.float64)
    if not costs.size:
        return Verdict(tuple(judged), criteria_names, (False,) * len(criteria_names), loss, accuracy or "", None)
    used = np.asarray(np.isfinite(costs).all(axis=0))
    choice = choose(costs[:, used], selection.zeta)
    return Verdict(tuple(judged), criteria_names, tuple(used.tolist()), loss, accuracy or "", choice)


def _run_of(trial: Trial) -> Run:
    if trial.run is None:
        raise CheckpointError(f"trial {trial.number} has neither a run folder nor a reason why it failed")
    return Run(trial.run)


def table(verdict: Verdict) -> pa.Table:
    """Return a row a trial: number, state, reason, run, its parameters, its criteria, front, grade, chosen."""
    trials = [judged.trial for judged in verdict.trials]
    grades = verdict.on_front()
    best = verdict.best
    made: dict[str, pa.Array] = {
        "trial": pa.array([trial.number for trial in trials], pa.int64()),
        "state": pa.array([judged.state for judged in verdict.trials], pa.string()),
        "reason": pa.array([judged.reason for judged in verdict.trials], pa.string()),
        "run": pa.array([None if trial.run is None else trial.run.name for trial in trials], pa.string()),
    }
    for key in _parameters(trials):
        made[key] = _column([trial.parameters.get(key) for trial in trials])
    figures = _figures(verdict)
    for index, name in enumerate(verdict.names):
        made[name] = pa.array(figures[:, index], pa.float64())
    made["front"] = pa.array([trial.number in grades for trial in trials], pa.bool_())
    made["grade"] = pa.array([grades.get(trial.number, math.nan) for trial in trials], pa.float64())
    made["chosen"] = pa.array([trial is best for trial in trials], pa.bool_())
    return pa.table(made)


def write_table(verdict: Verdict, path: Path) -> None:
    """Write :func:`table` as a Parquet file."""
    pq.write_table(table(verdict), path)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return the same as values that JSON knows; what is not known is ``None``."""
    grades, best = verdict.on_front(), verdict.best
    rows = []
    for judged, figures in zip(verdict.trials, _figures(verdict), strict=True):
        number = judged.trial.number
        rows.append(
            {
                "trial": number,
                "state": judged.state,
                "reason": judged.reason,
                "run": None if judged.trial.run is None else str(judged.trial.run),
                "parameters": dict(judged.trial.parameters),
                "criteria": {
                    name: float(value) if math.isfinite(value) else None
                    for name, value in zip(verdict.names, figures, strict=True)
                },
                "front": number in grades,
                "grade": grades.get(number),
            }
        )
    return {
        "loss": verdict.loss or None,
        "accuracy": verdict.accuracy or None,
        "best": None if best is None else best.number,
        "trials": rows,
    }


def show(verdict: Verdict, console: Console) -> None:
    """Print the trials: the best grade first, then those off the front by their loss, then those dropped."""
    trials = [judged.trial for judged in verdict.trials]
    keys = _parameters(trials)
    grades, best = verdict.on_front(), verdict.best
    shown = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=_caption(verdict), caption_justify="left"
    )
    shown.add_column("trial", justify="right", vertical="bottom", no_wrap=True)
    for label in _labels(keys):
        shown.add_column(Text(label, style="cyan"), justify="right", overflow="fold", min_width=7)
    # The runtimes differ by the latencies alone; the first stands for all.
    first = verdict.names[0].replace("_", "\n")
    for heading in (first, "loss", "accu-\nracy", "vola-\ntility", "rounds", "grade"):
        shown.add_column(heading, justify="right", no_wrap=True)
    dropped = []
    for judged in sorted(verdict.trials, key=lambda judged: _order(judged, grades)):
        trial = judged.trial
        if judged.criteria is None:
            dropped.append(judged)
            continue
        shown.add_row(
            f"{trial.number}{'*' if trial is best else ''}",
            *(_value_text(trial.parameters.get(key)) for key in keys),
            seconds_text(judged.criteria.runtimes[0]),
            _short(judged.criteria.loss),
            _accuracy_text(verdict.accuracy, judged.criteria.accuracy),
            f"{judged.criteria.volatility:.2g}",
            f"{judged.criteria.rounds:.0f}",
            f"{grades[trial.number]:.3f}" if trial.number in grades else UNKNOWN,
            style="bold green" if trial is best else "" if trial.number in grades else "dim",
        )
    if shown.row_count:
        console.print(shown)
    for judged in dropped:
        drawn = ", ".join(f"{key} {_value_text(value)}" for key, value in judged.trial.parameters.items())
        console.print(
            Text(f"trial {judged.trial.number} {judged.state}: {plain(judged.reason)} ({plain(drawn)})", style="red"),
            soft_wrap=True,
        )


def _order(judged: Judged, grades: Mapping[int, float]) -> tuple[float, float, int]:
    number = judged.trial.number
    loss = math.inf if judged.criteria is None else judged.criteria.loss
    return -grades.get(number, -math.inf), loss, number


def _caption(verdict: Verdict) -> str:
    chosen = ", * is chosen" if verdict.best is not None else ""
    lines = [
        f"{count_text(len(verdict.trials), 'trial')}; those on the Pareto front have a grade{chosen}",
        f"loss: {verdict.loss}" + (f"; accuracy: {verdict.accuracy}" if verdict.accuracy else ""),
    ]
    return "\n".join(lines)


def _accuracy_text(column: str, value: float) -> str:
    return share_text(value) if columns.is_share(column) else number_text(value)


def _value_text(value: Any) -> str:
    return _short(value) if isinstance(value, float) else plain(setting_text(value))


def _short(value: float) -> str:
    return f"{value:.3g}"


def _labels(keys: Sequence[str]) -> list[str]:
    """Return the last part of each key where no other key ends so, in lines that make a narrow heading."""
    last = [key.rpartition(".")[2] for key in keys]
    names = [part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)]
    return [plain(name).replace(".", ".\n").replace("_", "_\n") for name in names]


def _parameters(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.parameters))


def _figures(verdict: Verdict) -> Floats:
    """Return the criteria of all trials, shape (n, m); nan for those that were dropped."""
    unknown = [math.nan] * len(verdict.names)
    rows = [unknown if each.criteria is None else each.criteria.values() for each in verdict.trials]
    return np.array(rows, np.float64).reshape(len(rows), len(verdict.names))


def _column(values: Sequence[Any]) -> pa.Array:
    """Return values as a column; values of several types, and sections, as JSON."""
    try:
        found = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        found = None
    if found is None or pa.types.is_nested(found.type):
        return pa.array([json.dumps(value, default=str) for value in values], pa.string())
    return found
