"""What the programs about DRDM have in common: methods, runs that are kept, trials of step sizes, curves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

import fenchel
from benchmarks.program import progress
from common.phases import EVALUATE
from common.settings.run import load

Floats: TypeAlias = NDArray[np.float64]

MEAN, WORST, SPREAD = "client_accuracy_mean", "client_accuracy_worst", "client_accuracy_std"
"""Over the clients, each on test samples with the classes of its own."""

COLORS = ("#1f62a8", "#c2501a", "#15806a", "#8447a0", "#9a7000", "#2b92bd", "#b02a62", "#68727e")
"""Of curves."""


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes
    ----------
    title
        Its name.
    algorithm
        Settings, without what was tried out.
    tuned
        The best of what was tried out.
    grid
        What was tried out: values of each setting. Empty: it has another row's values.
    paper
        Average, worst client and standard deviation in the paper, in percent; empty: not in the paper.
    """

    title: str
    algorithm: Mapping[str, Any]
    tuned: Mapping[str, float]
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    paper: tuple[float, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Of the algorithm."""
        return {**self.algorithm, **self.tuned}


def finished(path: Path, method: Method, folder: Path, overrides: Sequence[str]) -> fenchel.Run | None:
    """Return a method's run that is in its folder already, or ``None``; parameters as for :func:`run_of`."""
    wanted = load(path, _chosen(method, overrides))
    for found in sorted(_folder(method, folder).glob("*/summary.json")):
        done = fenchel.Run(found.parent)
        if done.completed and done.settings == wanted:
            return done
    return None


def run_of(path: Path, method: Method, folder: Path, overrides: Sequence[str]) -> fenchel.Run:
    """Do a method's run with server and clients in processes of their own, or return the one that is in its folder.

    Parameters
    ----------
    path
        Settings file.
    method
        What to run.
    folder
        Where runs are kept.
    overrides
        What differs from the file, beside the algorithm.
    """
    done = finished(path, method, folder, overrides)
    if done is not None:
        return done
    chosen = _chosen(method, overrides)
    return fenchel.up(path, overrides=chosen, processes=2, runs=_folder(method, folder))


def _chosen(method: Method, overrides: Sequence[str]) -> list[str]:
    return [f"algorithm={json.dumps(method.settings)}", *overrides]


def _folder(method: Method, folder: Path) -> Path:
    return folder / re.sub(r"[^a-z0-9]+", "-", method.title.lower())


@dataclass(frozen=True)
class Trial:
    """A choice of settings that was tried out.

    Attributes
    ----------
    method
        Title of the method.
    tried
        The settings.
    worst, mean
        Accuracy of the worst client and average over the clients, in the mean over the last two thirds of the
        evaluations: single rounds go up and down. NaN: the run broke off.
    """

    method: str
    tried: Mapping[str, float]
    worst: float
    mean: float

    @property
    def is_over(self) -> bool:
        """Whether it came to its end."""
        return not np.isnan(self.worst)

    @property
    def words(self) -> str:
        """The settings, in words."""
        return ", ".join(f"{name} {value:.3g}" for name, value in self.tried.items())


def attempt(
    path: Path, method: Method, folder: Path, overrides: Sequence[str], *, only_kept: bool = False
) -> fenchel.Run | None:
    """Do a method's run in this process, to whatever end it comes; or return the one that is in its folder.

    Parameters
    ----------
    path, method, folder, overrides
        As for :func:`run_of`.
    only_kept
        Do no run: return the last one that was begun, or ``None``. Otherwise one that broke off is done again.
    """
    run = finished(path, method, folder, overrides)
    if run is None and not only_kept:
        try:
            return fenchel.up(
                path, overrides=_chosen(method, overrides), runs=_folder(method, folder), in_process=True
            )
        except fenchel.FenchelError as error:
            progress(f"{method.title} {dict(method.tuned)}: {error}")
    if run is not None:
        return run
    wanted = load(path, _chosen(method, overrides))
    begun = [fenchel.Run(found.parent) for found in sorted(_folder(method, folder).glob("*/settings.yaml"))]
    return next((run for run in reversed(begun) if run.settings == wanted), None)


def trials(
    path: Path, methods: Iterable[Method], folder: Path, overrides: Sequence[str], *, only_kept: bool = False
) -> list[Trial]:
    """Try out each method's grid, in this process, and keep the runs; parameters as for :func:`attempt`.

    With ``only_kept``, what was never begun is left out.
    """
    tested = []
    for method in (method for method in methods if method.grid):
        for tried in combinations(method.grid):
            run = attempt(
                path, replace(method, tuned=tried), folder / "trials", overrides, only_kept=only_kept
            )
            if run is None and only_kept:
                continue
            tested.append(_tested(method, tried, run))
            progress(f"{method.title}, {tested[-1].words}: {tested[-1].worst:.2%} {tested[-1].mean:.2%}")
    return tested


def _tested(method: Method, tried: Mapping[str, float], run: fenchel.Run | None) -> Trial:
    if run is None or not run.completed:
        return Trial(method.title, tried, np.nan, np.nan)
    _, worst = evaluated(run, WORST)
    _, mean = evaluated(run, MEAN)
    late = worst.size // 3
    return Trial(method.title, tried, float(worst[late:].mean()), float(mean[late:].mean()))


def combinations(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return every choice of one value for each setting."""
    chosen: list[dict[str, float]] = [{}]
    for name, values in grid.items():
        chosen = [{**before, name: value} for before in chosen for value in values]
    return chosen


def evaluated(run: fenchel.Run, figure: str) -> tuple[NDArray[np.int64], Floats]:
    """Return the rounds in which a figure was evaluated, and its values there."""
    metrics = run.metrics_table
    values = metrics[figure].to_numpy().astype(float)
    there = ~np.isnan(values)
    return metrics["round"].to_numpy()[there].astype(np.int64), values[there]


def megabytes(run: fenchel.Run) -> Floats:
    """Return what was sent in both directions until the end of each round, shape (rounds,), evaluation left out."""
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
    """Return a row of the table: a method's runs with all seeds, beside the paper.

    Parameters
    ----------
    targets
        Accuracies of the worst client; how many rounds and megabytes until the mean over the seeds is there.
    """
    last = {
        figure: np.array([evaluated(run, figure)[1][-1] for run in runs]) for figure in (MEAN, WORST, SPREAD)
    }
    names = ("average", "worst", "std")
    papers = [f"{value:.2f}" for value in method.paper] or ["–"] * len(names)
    figures: dict[str, object] = {"method": method.title, "seeds": len(runs)}
    for name, paper, values in zip(names, papers, last.values(), strict=True):
        figures |= {name: percent(values), f"paper, {name}": paper}
    losses = np.array([run.figures["worst_client_loss"] for run in runs])
    figures["largest client loss"] = f"{losses.mean():.3f}"
    rounds, worst = mean_curve(runs, WORST)
    sent = np.mean([megabytes(run) for run in runs], axis=0)
    for target in targets:
        reached = rounds[worst >= target]
        figures[f"rounds to worst {target:.0%}"] = int(reached[0]) if reached.size else "–"
        figures[f"MB to worst {target:.0%}"] = f"{sent[reached[0] - 1]:.0f}" if reached.size else "–"
    figures["MB a round"] = f"{sent[-1] / sent.size:.2f}"
    figures["s a round"] = f"{np.median(np.concatenate([run.metrics_table['seconds'] for run in runs])):.2f}"
    return figures


def mean_curve(runs: Sequence[fenchel.Run], figure: str) -> tuple[NDArray[np.int64], Floats]:
    """Return the rounds in which a figure was evaluated, and its mean over the seeds."""
    return evaluated(runs[0], figure)[0], np.mean([evaluated(run, figure)[1] for run in runs], axis=0)


def draw(curves: Mapping[str, Sequence[fenchel.Run]], path: Path, lowest: tuple[float, float]) -> None:
    """Draw average and worst client against rounds and against megabytes.

    Parameters
    ----------
    lowest
        Lower ends of the axes of the average and of the worst client.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    style = {"font.size": 9, "axes.grid": True, "grid.color": "#e5e7ea", "axes.titlelocation": "left"}
    with rc_context(style):  # type: ignore[arg-type]  # the stubs know only literal keys
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2, sharey="row", sharex="col")
        for row, (name, title) in enumerate(((MEAN, "Average over clients"), (WORST, "Worst client"))):
            for (method, runs), color in zip(curves.items(), COLORS * 2, strict=False):
                rounds, values = mean_curve(runs, name)
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
        figure.savefig(path, format="png", dpi=160, metadata={"Software": None})


def put(page: Path, name: str, made: str) -> None:
    """Put what was measured between a page's markers.

    Raises
    ------
    SystemExit
        The page has no such markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page}: has no lines {begin} and {end} for what was measured to stand between")
    page.write_text(f"{before}{begin}\n{made.strip()}\n{end}{after}")
