"""Runs of an experiment: what is planned, what is kept already, several at a time, and what comes out of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

import fenchel
from benchmarks.program import progress
from common.settings.run import load

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)

COLORS = ("#1f62a8", "#c2501a", "#15806a", "#8447a0", "#9a7000", "#2b92bd", "#b02a62", "#68727e")
"""Of curves."""


@dataclass(frozen=True)
class Planned:
    """A run that an experiment needs.

    Attributes
    ----------
    settings
        Settings file.
    overrides
        What differs from it, ``key=value``.
    folder
        Where runs with this name are kept.
    """

    settings: Path
    overrides: tuple[str, ...]
    folder: Path


def kept(planned: Planned) -> fenchel.Run | None:
    """Return the run if it is in its folder already, completed and with the same settings."""
    wanted = load(planned.settings, planned.overrides)
    for found in sorted(planned.folder.glob("*/summary.json")):
        run = fenchel.Run(found.parent)
        if run.completed and run.settings == wanted:
            return run
    return None


def done(planned: Planned) -> fenchel.Run:
    """Return the run that is kept, or do it, with server and clients in processes of their own."""
    return kept(planned) or fenchel.up(
        planned.settings, overrides=planned.overrides, processes=2, runs=planned.folder
    )


def all_done(plan: Mapping[Key, Planned], at_once: int) -> dict[Key, fenchel.Run]:
    """Do all runs in the order of the plan, and return those that came to their end; say why others did not.

    Parameters
    ----------
    at_once
        How many at the same time.
    """
    runs: dict[Key, fenchel.Run] = {}
    # Not forked: gRPC does not survive it.
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_folder_of, planned): key for key, planned in plan.items()}
        for future in as_completed(waiting):
            key = waiting[future]
            try:
                runs[key] = fenchel.Run(future.result())
            except fenchel.FenchelError as error:
                progress(f"{key}: {error}")
            else:
                progress(f"{len(runs)} of {len(plan)}: {key}")
    return {key: runs[key] for key in plan if key in runs}


def _folder_of(planned: Planned) -> Path:
    return done(planned).path


def all_kept(plan: Mapping[Key, Planned]) -> dict[Key, fenchel.Run]:
    """Return those runs of a plan that are in their folders already."""
    found = {key: kept(planned) for key, planned in plan.items()}
    return {key: run for key, run in found.items() if run is not None}


def evaluated(run: fenchel.Run, figure: str) -> tuple[Integers, Floats]:
    """Return the rounds in which a figure was evaluated, and its values there."""
    metrics = run.metrics_table
    values = metrics[figure].to_numpy().astype(float)
    there = ~np.isnan(values)
    return metrics["round"].to_numpy()[there].astype(np.int64), values[there]


def evaluated_in_all(runs: Sequence[fenchel.Run], figure: str) -> tuple[Integers, Floats]:
    """Return the rounds in which runs of equal length were evaluated, and the values, shape (runs, rounds)."""
    return evaluated(runs[0], figure)[0], np.array([evaluated(run, figure)[1] for run in runs])


def megabytes(run: fenchel.Run) -> Floats:
    """Return what was sent in both directions until the end of each round, shape (rounds,), evaluation left out."""
    metrics = run.metrics_table
    return np.cumsum(metrics["bytes_up"].to_numpy() + metrics["bytes_down"].to_numpy()) / 1e6


def mean_and_deviation(values: Floats, digits: int = 4) -> str:
    """Return a mean, and the population standard deviation over seeds if there are several."""
    words = f"{values.mean():.{digits}f}"
    return words if values.size == 1 else f"{words} ± {values.std():.{digits}f}"


def first(rounds: Integers, values: Floats, target: float) -> int | None:
    """Return the first of the rounds after which the value was that high."""
    reached = rounds[values >= target]
    return int(reached[0]) if reached.size else None


def draw(
    panels: Mapping[str, Mapping[str, Sequence[fenchel.Run]]],
    path: Path,
    figure: str,
    *,
    label: str,
    limits: tuple[float, float],
) -> None:
    """Draw a figure against rounds and against megabytes, both logarithmic: mean and standard deviation over seeds.

    Parameters
    ----------
    panels
        By title of a column and name of a curve, the runs of all seeds. The first half of the names is drawn solid.
    path
        The PNG file.
    figure
        Column of the table of metrics.
    label
        What it is.
    limits
        Ends of its axis.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    style = {"font.size": 9, "axes.grid": True, "grid.color": "#e5e7ea", "axes.titlelocation": "left"}
    with rc_context(style):  # type: ignore[arg-type]  # the stubs know only literal keys
        canvas = Figure(figsize=(max(7.0, 2.6 * len(panels)), 5.6), layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.subplots(2, len(panels), sharey=True, squeeze=False)
        for column, (title, curves) in enumerate(panels.items()):
            for name, runs in curves.items():
                rounds, values = evaluated_in_all(runs, figure)
                sent = np.mean([megabytes(run) for run in runs], axis=0)[rounds - 1]
                mean, deviation = values.mean(axis=0), values.std(axis=0)
                place = names.index(name)
                dash = "-" if 2 * place < len(names) else "--"
                for row, across in enumerate((rounds, sent)):
                    axes[row, column].plot(across, mean, dash, color=COLORS[place], linewidth=1.4, label=name)
                    axes[row, column].fill_between(
                        across,
                        mean - deviation,
                        mean + deviation,
                        color=COLORS[place],
                        alpha=0.1,
                        linewidth=0,
                    )
            axes[0, column].set(xscale="log", title=title, xlabel="round", ylim=limits)
            axes[1, column].set(xscale="log", xlabel="MB sent")
            for row in (0, 1):
                axes[row, column].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axes[row, column].xaxis.set_minor_formatter(NullFormatter())
        for row in (0, 1):
            axes[row, 0].set(ylabel=label)
        canvas.legend(
            *axes[0, 0].get_legend_handles_labels(),
            frameon=False,
            loc="outside lower center",
            ncols=len(names),
        )
        canvas.savefig(path, format="png", dpi=150, metadata={"Software": None})


def put(page: Path, name: str, made: str) -> None:
    """Put what was measured between a page's markers; what stands around them was written by people.

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
