"""What came out of the runs of an experiment: figures round by round, and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import fenchel

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


def evaluated(run: fenchel.Run, figure: str) -> tuple[Integers, Floats]:
    """Return the rounds in which a figure was evaluated, and its values there."""
    metrics = run.metrics_table
    values = metrics[figure].to_numpy().astype(float)
    there = ~np.isnan(values)
    return metrics["round"].to_numpy()[there].astype(np.int64), values[there]


def evaluated_in_all(runs: Sequence[fenchel.Run], figure: str) -> tuple[Integers, Floats]:
    """Return the rounds in which runs of equal length were evaluated, and the values, shape (runs, rounds)."""
    return evaluated(runs[0], figure)[0], np.array([evaluated(run, figure)[1] for run in runs])


def first(rounds: Integers, values: Floats, target: float) -> int | None:
    """Return the first of the rounds after which the value was that high."""
    reached = rounds[values >= target]
    return int(reached[0]) if reached.size else None


def megabytes(run: fenchel.Run) -> Floats:
    """Return what was sent in both directions until the end of each round, shape (rounds,), evaluation left out."""
    metrics = run.metrics_table
    return np.cumsum(metrics["bytes_up"].to_numpy() + metrics["bytes_down"].to_numpy()) / 1e6


def mean_and_deviation(values: Floats, digits: int = 4) -> str:
    """Return a mean, and the population standard deviation over seeds if there are several."""
    words = f"{values.mean():.{digits}f}"
    return words if values.size == 1 else f"{words} ± {values.std():.{digits}f}"
