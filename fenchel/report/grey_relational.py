"""Choice of one trial on a Pareto front by grey relational analysis, as in the HyFDCA paper.

Source: Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning"; the analysis is Deng's.
"""

from __future__ import annotations

import numpy as np

from fenchel.report.columns import Floats

ZETA = 0.5
"""Distinguishing coefficient of the paper. A smaller value gives more weight to the distance from the ideal."""


def choose(costs: Floats, zeta: float = ZETA) -> int:
    """Return the index of the trial with the largest grade, or the first of several such trials.

    Parameters
    ----------
    costs
        Criteria of the trials on the front, smaller is better, finite, shape (n, m).
    """
    return int(np.argmax(grades(normalised(costs), zeta)))


def normalised(costs: Floats) -> Floats:
    """Return each criterion scaled to [0, 1], where 1 is the best trial, shape (n, m). Equal values become 1."""
    worst, best = costs.max(axis=0), costs.min(axis=0)
    # Halve before subtracting, because the difference of two very large numbers could overflow.
    span = worst / 2 - best / 2
    differs = span > 0
    return np.where(differs, (worst / 2 - costs / 2) / np.where(differs, span, 1.0), 1.0)


def grades(goodness: Floats, zeta: float = ZETA) -> Floats:
    """Return each trial's grade, the mean over criteria of ``(d_min + zeta d_max) / (d + zeta d_max)``, shape (n,).

    ``d = 1 - goodness`` is the distance to an ideal trial; ``d_min`` and ``d_max`` are the smallest and the largest of
    all distances.

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
