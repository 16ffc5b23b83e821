"""What the programs about DRDM have in common: methods, rows of tables, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

import fenchel
from benchmarks.experiment import Planned, done
from benchmarks.figure import canvas
from benchmarks.outcome import Floats, Integers, evaluated, evaluated_in_all, first
from fenchel.common.wire.phases import EVALUATE
from fenchel.report.render.canvas import COLORS

MEAN, WORST, SPREAD = "client_accuracy_mean", "client_accuracy_worst", "client_accuracy_std"
"""Over the clients, each on test samples with the classes of its own."""


@dataclass(frozen=True)
class Method:
    """A row of a table."""

    title: str  # its name
    algorithm: Mapping[str, Any]  # settings, without what was tried out
    tuned: Mapping[str, float]  # the best of what was tried out
    paper: tuple[float, ...] = ()
    """Average, worst client and standard deviation in the paper, in percent; empty: not in the paper."""

    def run(self, settings: Path, runs: Path, overrides: Sequence[str]) -> fenchel.Run:
        """Do its run with a settings file, or return the one below ``runs``; overrides are beside the algorithm."""
        return done(Planned.row(settings, self.title, {**self.algorithm, **self.tuned}, overrides, runs))


def megabytes(run: fenchel.Run) -> Floats:
    """Return what was sent in both directions until the end of each round, shape (rounds,), evaluation left out.

    Other than in :func:`benchmarks.outcome.megabytes`, what is sent before the first round is a part of it.
    """
    calls = run.calls_table.filter(pc.not_equal(run.calls_table["phase"], EVALUATE))
    # What is asked before the first round counts too; what comes after the last is the farewell.
    calls = calls.filter(pc.less_equal(calls["round"], run.settings.rounds))
    rounds = np.maximum(calls["round"].to_numpy(), 1) - 1
    sent = calls["bytes_up"].to_numpy() + calls["bytes_down"].to_numpy()
    return np.cumsum(np.bincount(rounds, weights=sent, minlength=run.settings.rounds)) / 1e6


def percent(values: Floats, digits: int = 2) -> str:
    """Return a mean, and the standard deviation over seeds if there are several, in percent."""
    words = f"{100 * values.mean():.{digits}f}"
    return words if values.size == 1 else f"{words} ± {100 * values.std(ddof=1):.{digits}f}"


def line(method: Method, runs: Sequence[fenchel.Run], targets: Sequence[float]) -> dict[str, object]:
    """Return a row of the table: a method's runs with all seeds, and the paper's figures in brackets.

    targets: accuracies of the worst client; how many rounds and megabytes until the mean over the seeds is there.
    """
    last = {figure: np.array([evaluated(run, figure)[1][-1] for run in runs]) for figure in (MEAN, WORST, SPREAD)}
    names = ("average", "worst", "std")
    papers = [f" ({value:.2f})" for value in method.paper] or [""] * len(names)
    figures: dict[str, object] = {"method": method.title}
    for name, paper, values in zip(names, papers, last.values(), strict=True):
        figures[name] = f"{percent(values)}{paper}"
    losses = np.array([run.figures["worst_client_loss"] for run in runs])
    figures["largest loss"] = f"{losses.mean():.3f}"
    rounds, worst = _mean_curve(runs, WORST)
    sent = np.mean([megabytes(run) for run in runs], axis=0)
    for target in targets:
        reached = first(rounds, worst, target)
        figures[f"rounds, MB to {target:.0%}"] = f"{reached}, {sent[reached - 1]:.0f}" if reached else "–"
    figures["MB a round"] = f"{sent[-1] / sent.size:.2f}"
    return figures


def _mean_curve(runs: Sequence[fenchel.Run], figure: str) -> tuple[Integers, Floats]:
    rounds, values = evaluated_in_all(runs, figure)
    return rounds, values.mean(axis=0)


def draw(curves: Mapping[str, Sequence[fenchel.Run]], path: Path, lowest: tuple[float, float]) -> None:
    """Draw average and worst client against rounds and against megabytes.

    lowest: lower ends of the axes of the average and of the worst client.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    with canvas(path, (10, 7)) as figure:
        axes = figure.subplots(2, 2, sharey="row", sharex="col")
        for row, (name, title) in enumerate(((MEAN, "Average over clients"), (WORST, "Worst client"))):
            for (method, runs), color in zip(curves.items(), COLORS * 2, strict=False):
                rounds, values = _mean_curve(runs, name)
                sent = np.mean([megabytes(run) for run in runs], axis=0)[rounds - 1]
                dash = "-" if method.startswith("DRDM") else "--"
                axes[row, 0].plot(rounds, values, dash, color=color, linewidth=1.5, label=method)
                axes[row, 1].plot(sent, values, dash, color=color, linewidth=1.5)
            axes[row, 0].set(ylabel="accuracy", title=f"{title}, against rounds", ylim=(lowest[row], None))
            axes[row, 1].set(title=f"{title}, against megabytes", xscale="log")
        axes[1, 0].set(xlabel="round")
        axes[1, 1].set(xlabel="MB sent in both directions, evaluation left out")
        axes[1, 1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[1, 1].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[1, 1].xaxis.set_minor_formatter(NullFormatter())
        names, titles = axes[1, 0].get_legend_handles_labels()
        figure.legend(names, titles, frameon=False, fontsize=8, loc="outside lower center", ncols=5)
