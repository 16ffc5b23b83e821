"""Choice of one trial on a Pareto front by grey relational analysis, as the HyFDCA paper chooses its parameters.

Source: Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning"; the analysis is Deng's.
"""

from __future__ import annotations

import numpy as np

from fenchel.report.columns import Floats

ZETA = 0.5
"""Distinguishing coefficient of the paper: the smaller, the more a distance from the ideal counts."""


def choose(costs: Floats, zeta: float = ZETA) -> int:
    """Return the index of the largest grade; of equal ones the first.

    Parameters
    ----------
    costs
        Criteria of the trials on the front, smaller is better, finite, shape (n, m).
    """
    return int(np.argmax(grades(normalised(costs), zeta)))


def normalised(costs: Floats) -> Floats:
    """Return each criterion between 0 (the worst trial) and 1 (the best), shape (n, m); 1 where all are equal."""
    worst, best = costs.max(axis=0), costs.min(axis=0)
    # Halves: the difference of two very large numbers would be infinite.
    span = worst / 2 - best / 2
    differs = span > 0
    return np.where(differs, (worst / 2 - costs / 2) / np.where(differs, span, 1.0), 1.0)


def grades(goodness: Floats, zeta: float = ZETA) -> Floats:
    """Return the mean over the criteria of ``(d_min + zeta d_max) / (d + zeta d_max)``, shape (n,).

    ``d = 1 - goodness`` is the distance to an ideal trial; ``d_min`` and ``d_max`` are the smallest and the largest of
    all.

    Parameters
    ----------
    goodness
        Normalised criteria, shape (n, m).
    """
    distance = 1.0 - goodness
    nearest, farthest = distance.min(), distance.max()
    if farthest == 0:
        return np.ones(len(goodness))
    coefficients = (nearest + zeta * farthest) / (distance + zeta * farthest)
    return np.asarray(coefficients.mean(axis=1), np.float64)
