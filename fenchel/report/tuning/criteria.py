"""What the trials of a search are compared by: seven figures of each finished run.

Source: the multi-objective parameter choice of Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid
Federated Learning": mean runtime of a round at several network latencies, loss, accuracy, volatility, speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fenchel.common.errors import SettingsError
from fenchel.common.settings.tuning import Selection
from fenchel.report import columns
from fenchel.report.run import Run
from fenchel.report.tuning.selection import Floats

LOSSES = ("objective", "primal_objective", "train_loss")
ACCURACIES = ("holdout_accuracy", "test_accuracy", "train_accuracy")

_CLOCKS = 1e-3  # share by which a duration of one clock may differ from that of another


@dataclass(frozen=True)
class Criteria:
    """The figures of one run."""

    runtimes: tuple[float, ...]  # mean seconds of a round at each latency of the settings
    loss: float  # mean of the last losses
    accuracy: float  # the largest; nan where there is none
    volatility: float  # standard deviation of the differences between consecutive losses
    rounds: float  # first round in which most of the loss reduction is reached; the last one if the loss never fell

    def costs(self) -> list[float]:
        """Return the figures in the order of :func:`names`, so that smaller is better."""
        return [*self.runtimes, self.loss, -self.accuracy, self.volatility, self.rounds]

    def values(self) -> list[float]:
        """Return the figures in the order of :func:`names`."""
        return [*self.runtimes, self.loss, self.accuracy, self.volatility, self.rounds]


def names(latencies: Sequence[float]) -> list[str]:
    """Return the names of the criteria, in their order."""
    return [*(f"runtime_{latency:g}s" for latency in latencies), "loss", "accuracy", "volatility", "rounds"]


def loss_column(runs: Sequence[Run], chosen: str) -> str:
    """Return the column that is the loss of all runs."""
    known = _known(runs)
    candidates = LOSSES if chosen == "auto" else (chosen,)
    for name in candidates:
        if name in known:
            return name
    raise SettingsError(
        f"{chosen}: no trial has values of {' or '.join(candidates)}; "
        f"their figures are {', '.join(known) or 'none'} (see evaluation in the settings of the run)",
        key="selection.loss",
    )


def accuracy_column(runs: Sequence[Run], chosen: str) -> str | None:
    """Return the column that is the accuracy of all runs; ``None`` if it is left open and there is none."""
    known = _known(runs)
    if chosen == "auto":
        return next((name for name in ACCURACIES if name in known), None)
    if chosen not in known:
        raise SettingsError(
            f"no trial has values of {chosen}; their figures are {', '.join(known) or 'none'}", key="selection.accuracy"
        )
    return chosen


def divergence(run: Run, loss: str, selection: Selection) -> str:
    """Say why a run has diverged; empty if it has not.

    loss: its column.
    """
    values = columns.column(run.metrics_table, loss)
    # The model is always evaluated after the last round; earlier rounds may be left out.
    if not values.size or not math.isfinite(values[-1]) or np.isinf(values).any():
        return f"{loss} is not finite"
    known = values[np.isfinite(values)]
    first, end = known[0], known[-selection.last :].mean()
    if end > first + (selection.growth - 1) * abs(first):
        return f"{loss} has grown from {first:.4g} to {end:.4g}"
    if selection.worst_loss is not None and end > selection.worst_loss:
        return f"{loss} ends at {end:.4g}, above {selection.worst_loss:.4g}"
    return ""


def criteria(run: Run, loss: str, accuracy: str | None, selection: Selection) -> Criteria:
    """Return the figures of a run that has not diverged.

    loss, accuracy: columns of ``metrics.parquet``.
    """
    metrics = run.steady.metrics
    rounds, seconds = (columns.column(metrics, name) for name in ("round", "seconds"))
    trips = round_trips(run.calls_table, rounds) if selection.round_trips is None else selection.round_trips
    losses = columns.column(metrics, loss)
    known = np.isfinite(losses)
    accuracies = np.array([]) if accuracy is None else columns.column(metrics, accuracy)
    accuracies = accuracies[np.isfinite(accuracies)]
    return Criteria(
        runtimes=tuple(float((seconds + trips * latency).mean()) for latency in selection.latencies),
        loss=float(losses[known][-selection.last :].mean()),
        accuracy=float(accuracies.max()) if accuracies.size else math.nan,
        volatility=volatility(losses[known]),
        rounds=rounds_to_reach(rounds[known], losses[known], selection.reduction),
    )


def volatility(losses: Floats) -> float:
    """Return the standard deviation of consecutive loss differences; 0 for fewer than two differences."""
    differences = np.diff(losses)
    return float(differences.std()) if differences.size > 1 else 0.0


def rounds_to_reach(rounds: Floats, losses: Floats, share: float) -> float:
    """Return the first round in which the loss has come down by ``share`` of the way to its lowest value.

    A loss that never falls below its first value gives the last round: there was nothing to reach.

    rounds, losses: shape (n,), n at least 1.
    """
    first, lowest = losses[0], losses.min()
    if lowest >= first:
        return float(rounds[-1])
    # Rounding must put the target neither below the lowest loss nor at the first.
    target = min(max(first - share * (first - lowest), lowest), np.nextafter(first, -np.inf))
    return float(rounds[np.argmax(losses <= target)])


def round_trips(calls: pa.Table, rounds: Floats) -> Floats:
    """Return how often each round waited for an answer after another, shape (n,).

    It is the largest number of answered questions of which each was asked when the one before had been answered.
    Questions that were asked together, to one client or to many, are one round trip; what was only told
    (nobody waits for it) and the evaluation are none.

    calls: rows of ``calls.parquet``.
    rounds: numbers of the rounds, in order, shape (n,).
    """
    trips = np.zeros(rounds.size)
    if not {"kind", "outcome"} <= set(calls.column_names):
        return trips
    asked = calls.filter(pc.and_(pc.equal(calls["kind"], "ask"), pc.equal(calls["outcome"], "counted")))
    of_round, begun, lasted = (columns.column(asked, name) for name in ("round", "queued_unix", "total_s"))
    ended = begun + lasted * (1 - _CLOCKS)
    answered = np.isfinite(ended)
    of_round, begun, ended = of_round[answered], begun[answered], ended[answered]
    position = {t: index for index, t in enumerate(rounds.tolist())}
    current, free_from = math.nan, -math.inf
    # Of what overlaps, the question that is answered first leaves most time for others.
    for i in np.lexsort((ended, of_round)):
        if of_round[i] != current:
            current, free_from = of_round[i], -math.inf
        if begun[i] >= free_from and current in position:
            trips[position[current]] += 1
            free_from = ended[i]
    return trips


def _known(runs: Sequence[Run]) -> list[str]:
    """Return the figures that some run has values of; in a run that has diverged they may be infinite."""
    return list(
        dict.fromkeys(
            name
            for run in runs
            for name in columns.figures(run.metrics_table)
            if not np.isnan(columns.column(run.metrics_table, name)).all()
        )
    )
