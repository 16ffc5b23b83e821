"""Results of a hyperparameter search with Optuna: values of the objectives, table, JSON and plot."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fenchel.common.errors import DivergedError, SettingsError
from fenchel.report import columns
from fenchel.report.formatting import bytes_text, count_text, figure_text, printable, seconds_text
from fenchel.report.grey_relational import choose
from fenchel.report.render.canvas import LOGARITHMIC, SOFT, canvas, label_logarithmic
from fenchel.report.render.terminal import setting_text
from fenchel.report.run import Run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LOSSES = ("objective", "primal_objective", "train_loss")
"""Candidate columns for the objective ``objective``, of which the first known one is used."""

SUMS: Mapping[str, tuple[str, ...]] = {"seconds": ("seconds",), "bytes": ("wire_down", "wire_up")}
"""Objectives that are sums over the rounds, and their columns."""

_CHOSEN, _OTHER = "#c2501a", "#b4bac2"
_LABELLED = 12  # largest number of labelled trials of the Pareto front in the plot
_WIDE = 20.0  # ratio of the largest to the smallest value above which an axis is logarithmic


@dataclass(frozen=True)
class SearchResult:
    """Trials of a hyperparameter search.

    Attributes
    ----------
    objectives
        Direction of each objective, ``minimize`` or ``maximize``, by name.
    trials
        All trials, in the order of their numbers.
    front
        Numbers of the best trials: one, or the Pareto front of several objectives.
    """

    objectives: Mapping[str, str]
    trials: tuple[FrozenTrial, ...]
    front: tuple[int, ...]

    @property
    def chosen(self) -> int:
        """Number of the best trial, which on a front has the largest grey relational grade."""
        signs = [1 if direction == "minimize" else -1 for direction in self.objectives.values()]
        costs = np.array([self.trials[number].values for number in self.front]) * signs
        return self.front[choose(costs)]

    @property
    def parameters(self) -> list[str]:
        """Dotted keys of the parameters."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))


def loss_column(known: Collection[str]) -> str:
    """Return the first of :data:`LOSSES` that is known, or else the first of them."""
    return next((name for name in LOSSES if name in known), LOSSES[0])


def objective_value(run: Run, objective: str) -> float:
    """Return the value of an objective for a completed run: a sum over the rounds, or the last value of a column.

    Raises
    ------
    DivergedError
        If the last value of the figure or of the loss is not finite, or the run has neither.
    SettingsError
        If the run has a loss, but not this figure.
    """
    metrics = run.metrics_table
    if objective in SUMS:
        return float(sum(np.nansum(columns.column(metrics, name)) for name in SUMS[objective]))
    figures = {name: columns.column(metrics, name) for name in columns.figures(metrics)}
    known = [name for name, values in figures.items() if not np.isnan(values).all()]
    loss = loss_column(known)
    name = loss if objective == LOSSES[0] else objective
    for figure in (loss, name):
        if figure in known and not math.isfinite(value := float(figures[figure][-1])):
            raise DivergedError(f"the final {figure} is {value}")
    if name not in known:
        if loss not in known:
            raise DivergedError(f"the run recorded no value of {loss}")
        raise SettingsError(
            f"the runs have no figure {name}; use one of {', '.join([*known, *SUMS])}", key=f"objectives.{objective}"
        )
    return float(figures[name][-1])


def value_text(objective: str, value: float) -> str:
    """Return the value of an objective as text, with its unit."""
    if objective in SUMS:
        return seconds_text(value) if objective == "seconds" else bytes_text(value)
    return figure_text(objective, value)


def as_json(result: SearchResult) -> dict[str, Any]:
    """Return the result as a dictionary that can be written as JSON."""
    return {
        "objectives": dict(result.objectives),
        "best": list(result.front),
        "chosen": result.chosen,
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "reason": trial.user_attrs.get("reason"),
                "run": trial.user_attrs.get("run"),
                "parameters": trial.params,
                "values": None if trial.values is None else dict(zip(result.objectives, trial.values, strict=True)),
            }
            for trial in result.trials
        ],
    }


def show(result: SearchResult, console: Console) -> None:
    """Print completed trials, the best trial first, then stopped and failed trials with their reasons."""
    best = (
        "the best trial" if len(result.objectives) == 1 else f"on the Pareto front, of which {result.chosen} is chosen"
    )
    caption = f"{count_text(len(result.trials), 'trial')}; * {best}"
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    shown.add_column("trial", justify="right", no_wrap=True)
    for key in result.parameters:
        shown.add_column(Text(printable(key.rpartition(".")[2]), style="cyan"), justify="right", overflow="fold")
    for name in result.objectives:
        shown.add_column(printable(name), justify="right", no_wrap=True)
    sign = 1 if next(iter(result.objectives.values())) == "minimize" else -1
    completed = [trial for trial in result.trials if trial.state.name == "COMPLETE"]
    for trial in sorted(completed, key=lambda trial: (trial.number not in result.front, sign * trial.values[0])):
        chosen = trial.number in result.front
        shown.add_row(
            f"{trial.number}{'*' if chosen else ''}",
            *(_text(trial.params.get(key)) for key in result.parameters),
            *(value_text(name, value) for name, value in zip(result.objectives, trial.values, strict=True)),
            style="bold green" if chosen else "",
        )
    if completed:
        console.print(shown)
    for trial in result.trials:
        if trial not in completed:
            drawn = ", ".join(f"{key} {_text(value)}" for key, value in trial.params.items())
            reason = printable(trial.user_attrs.get("reason", ""))
            text = f"trial {trial.number} {trial.state.name.lower()}: {reason} ({printable(drawn)})"
            console.print(Text(text, style="red" if trial.state.name == "FAIL" else ""), soft_wrap=True)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else printable(setting_text(value))


def draw(result: SearchResult, path: Path) -> Path:
    """Plot the first objective against the second or, without one, against the number of the trial; return ``path``."""
    names = list(result.objectives)
    completed = [trial for trial in result.trials if trial.state.name == "COMPLETE"]
    y = np.array([trial.values[0] for trial in completed])
    x = np.array([trial.values[1] if len(names) > 1 else trial.number for trial in completed])
    best = np.array([trial.number in result.front for trial in completed])
    with canvas(path, (5.6, 3.8), {**LOGARITHMIC, "axes.grid.axis": "both"}) as figure:
        axes = figure.subplots()
        axes.scatter(x[~best], y[~best], s=22, color=_OTHER)
        axes.scatter(x[best], y[best], s=36, color=_CHOSEN, label="Pareto front" if len(names) > 1 else "best")
        if best.sum() <= _LABELLED:
            for index in np.flatnonzero(best):
                at, text = (x[index], y[index]), str(completed[index].number)
                axes.annotate(text, at, xytext=(4, 4), textcoords="offset points", color=SOFT, fontsize=8)
        if y.min() > 0 and y.max() > _WIDE * y.min():
            axes.set_yscale("log")
            label_logarithmic(axes.yaxis, lambda value, _: f"{value:g}")
        if len(names) == 1:
            axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.set_xlabel(names[1] if len(names) > 1 else "trial")
        axes.set_ylabel(names[0].replace("_", " "))
        axes.legend(frameon=False)
    return path
