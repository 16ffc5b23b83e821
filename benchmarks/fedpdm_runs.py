"""What the programs about FedPDM have in common: rows of settings, their runs, the optimum, bits on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

import fenchel
from benchmarks.experiment import Planned, done
from benchmarks.figure import canvas
from benchmarks.outcome import evaluated, evaluated_in_all, first
from fenchel.common.compression.sparsification import kept
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings, load
from fenchel.common.wire.phases import EVALUATE
from fenchel.report.render.canvas import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = (*COLORS, "#000000", "#e0a000")


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    title: str  # its name
    algorithm: Mapping[str, Any]  # settings
    overrides: tuple[str, ...] = field(default=())  # what differs from the settings file, beside the algorithm


def run_of(path: Path, row: Row, folder: Path, overrides: Sequence[str] = ()) -> fenchel.Run:
    """Do a row's run with server and clients in processes of their own, or return the one that is in its folder.

    folder: where runs are kept.
    overrides: what differs from the file in all rows.
    """
    return done(Planned.row(path, row.title, row.algorithm, (*overrides, *row.overrides), folder))


def runs_of(
    path: Path, row: Row, seeds: Sequence[int], folder: Path, overrides: Sequence[str] = ()
) -> list[fenchel.Run]:
    """Return a run of the row for each seed; the other parameters as for :func:`run_of`."""
    return [run_of(path, row, folder, [f"seed={seed}", *overrides]) for seed in seeds]


@dataclass(frozen=True)
class Optimum:
    """The best model that one machine finds with all training samples."""

    objective: float  # F there
    accuracy: float  # on the test set
    nonzeros: int  # entries of the model that are not zero
    residual: float  # norm of the proximal gradient: 0 at a stationary point


def optimum(path: Path, overrides: Sequence[str], steps: int) -> Optimum:
    """Minimise F by accelerated proximal gradient steps, begun anew whenever F rises (O'Donoghue and Candes 2015)."""
    settings = load(path, overrides)
    source = DataSource.open(settings.data, settings.seed)
    objective = build_objective(settings.objective, source.training(settings.objective.dtype))
    h, smoothness = objective.regularizer, objective.smoothness
    assert smoothness is not None
    x = objective.initial(settings.seed)
    ahead, momentum, lowest = x, 1.0, np.inf
    for _ in range(steps):
        following = h.prox(ahead - objective.gradient(ahead) / smoothness, smoothness)
        value = objective.value(following) + h.value(following)
        if value > lowest and momentum > 1:
            ahead, momentum = x, 1.0
            continue
        lowest, grown = value, (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / grown * (following - x)
        x, momentum = following, grown
    step = h.prox(x - objective.gradient(x) / smoothness, smoothness)
    measured = objective.evaluate(x, source.test(settings.objective.dtype))
    assert measured.accuracy is not None
    return Optimum(lowest, measured.accuracy, int(np.count_nonzero(x)), smoothness * float(np.linalg.norm(x - step)))


@dataclass(frozen=True)
class Bits:
    """Bits from the clients until the end of each round, evaluation left out."""

    paper: NDArray[np.float64]  # as the paper counts: 32 for each value that a client sends, shape (rounds,)
    payload: NDArray[np.float64]  # the arrays that were sent, indices and seeds of supports included, shape (rounds,)


def bits(run: fenchel.Run) -> Bits:
    """Count what the clients of a run sent."""
    calls = run.calls_table
    calls = calls.filter(pc.and_(pc.not_equal(calls["phase"], EVALUATE), pc.greater_equal(calls["round"], 1)))
    calls = calls.filter(pc.less_equal(calls["round"], run.settings.rounds))
    rounds = calls["round"].to_numpy() - 1

    def until(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.cumsum(np.bincount(rounds, weights=values, minlength=run.settings.rounds))

    sent = calls["bytes_up"].to_numpy()
    values = 32.0 * values_sent(run.settings, int(run.model.size)) * (sent > 0)
    return Bits(until(values), until(8 * sent))


def values_sent(settings: RunSettings, size: int) -> int:
    """Return how many numbers an upload has: k of the d coordinates; SCAFFOLD has two vectors in every textbook."""
    sparsifier = settings.uplink.sparsify
    count = size if sparsifier is None else kept(sparsifier.keep, size)
    return 2 * count if settings.algorithm.name == "scaffold" else count


def rounds_to(run: fenchel.Run, accuracy: float) -> int | None:
    """Return the first round after which the test accuracy was that high."""
    return first(*evaluated(run, "test_accuracy"), accuracy)


@contextmanager
def against_rounds_and_bits(
    curves: Mapping[str, Sequence[fenchel.Run]], column: str, path: Path, size: tuple[float, float]
) -> Iterator[tuple[Figure, Axes, Axes]]:
    """Draw means over seeds against rounds, and against bits from the clients; yield what is to be finished."""
    with canvas(path, size) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for (title, runs), color in zip(curves.items(), _COLORS, strict=False):
            rounds, values = evaluated_in_all(runs, column)
            mbit = np.mean([bits(run).payload[rounds - 1] for run in runs], axis=0) / 1e6
            compressed = title.startswith(("BSDP", "EF21", "random"))
            dash = "-" if title.startswith("FedPDM") else "-." if compressed else "--"
            left.plot(rounds, values.mean(axis=0), dash, color=color, linewidth=1.6, label=title)
            right.plot(mbit, values.mean(axis=0), dash, color=color, linewidth=1.6)
        left.set(xlabel="round", title="Against rounds")
        right.set(xlabel="Mbit from the clients (payload)", title="Against bits", xscale="log")
        yield figure, left, right
