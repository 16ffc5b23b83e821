"""One of many runs, by several criteria at once: Pareto front, then grey relational analysis.

Source: Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", which chooses
its parameters so; the analysis is Deng's. Every criterion is a cost here: smaller is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Selected:
    """The chosen run, and what the choice rests on."""

    front: Flags  # who is on the Pareto front, shape (n,), bool
    goodness: Floats
    """Normalised criteria of those on the front: 1 is the best of the front, 0 the worst; nan elsewhere. Shape (n,
    m)."""
    grades: Floats  # grey relational grades of those on the front, at most 1; nan elsewhere. Shape (n,).
    best: int  # index of the largest grade; of several, the first


def choose(costs: Floats, zeta: float) -> Selected:
    """Return the run with the largest grey relational grade on the Pareto front.

    costs: criteria, smaller is better, finite, shape (n, m).
    zeta: distinguishing coefficient, above 0.
    """
    if costs.ndim != 2 or not costs.size or not np.isfinite(costs).all():
        raise ValueError(f"expected finite criteria of at least one run, shape (n, m), given {costs!r}")
    front = pareto_front(costs)
    goodness = np.full(costs.shape, math.nan)
    goodness[front] = normalised(costs[front])
    grades = np.full(len(costs), math.nan)
    grades[front] = grey_relational_grades(goodness[front], zeta)
    return Selected(front, goodness, grades, int(np.nanargmax(grades)))


def pareto_front(costs: Floats) -> Flags:
    """Return who is not dominated, shape (n,), bool.

    A run dominates another if it is nowhere worse and somewhere better; so of several equal runs all stay.

    costs: smaller is better, shape (n, m).
    """
    front = np.empty(len(costs), np.bool_)
    for i, mine in enumerate(costs):
        dominating = (costs <= mine).all(axis=1) & (costs < mine).any(axis=1)
        front[i] = not dominating.any()
    return front


def normalised(costs: Floats) -> Floats:
    """Return each criterion between 0 (the worst run) and 1 (the best), shape (n, m).

    A criterion in which all runs are equal is 1 for all of them, so that it does not tell them apart.
    """
    worst, best = costs.max(axis=0), costs.min(axis=0)
    # Halves: the difference of two very large numbers would be infinite.
    span = worst / 2 - best / 2
    differs = span > 0
    return np.where(differs, (worst / 2 - costs / 2) / np.where(differs, span, 1.0), 1.0)


def grey_relational_grades(goodness: Floats, zeta: float) -> Floats:
    """Return the mean over the criteria of ``(d_min + zeta d_max) / (d + zeta d_max)``, shape (n,).

    ``d = 1 - goodness`` is the distance to the ideal run, ``d_min`` and ``d_max`` its extremes over all runs
    and criteria.

    goodness: normalised criteria, 1 is ideal, shape (n, m).
    zeta: distinguishing coefficient: the smaller, the more a distance from the ideal counts.
    """
    distance = 1.0 - goodness
    nearest, farthest = distance.min(), distance.max()
    if farthest == 0:
        return np.ones(len(goodness))  # all runs are ideal
    coefficients = (nearest + zeta * farthest) / (distance + zeta * farthest)
    return np.asarray(coefficients.mean(axis=1), np.float64)
