"""The step along one dual coordinate, of many samples at once (docs/specifications/hyfdca.md, section 1.5).

For the regularised problem

    P(w) = (l2/2) ||w||^2 + (1/N) sum_i l_i(x_i^T w)

the dual variable of sample i, ``alpha``, moves by the ``Delta`` that maximises

    -l*(-(alpha + Delta)) - Delta z - (q/2) Delta^2

where ``z`` is the sample's score and ``q`` the curvature, ``sigma ||x_i||^2 / (l2 N)``. Four of the five
losses have the same conjugate, ``l*(-alpha) = -alpha y + s alpha^2 / 2`` on an interval, and differ in ``s``
and in the interval only: for them one formula serves. The logistic loss needs a root.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fenchel.common.arrays import Vector
from fenchel.common.objectives.losses import MarginLoss, Targets

ScalarStep: TypeAlias = Callable[[float, float, float, float], float]
"""The step of one sample, from its dual variable, score, target and curvature."""

NEWTON_LIMIT = 200
"""Steps are about ln(q) + 5, so 26 for a curvature of 1e9; more would mean values that are not numbers."""


def conjugate_curvature(loss: MarginLoss) -> float | None:
    """Return :attr:`MarginLoss.conjugate_curvature`."""
    return loss.conjugate_curvature


def feasible(loss: MarginLoss, dual: Vector, targets: Targets) -> Vector:
    """Return the nearest dual variables with a finite conjugate, shape (n,).

    Fixed-point numbers push a dual variable out of the domain by as much as they round. What is returned
    is for evaluating the dual objective only, never to be sent back (specification, 5.1-E16).
    """
    low, high = loss.domain
    if math.isinf(low):
        return dual.copy()
    return targets * np.clip(targets * dual, low, high)


def dual_step(loss: MarginLoss, dual: Vector, scores: Vector, targets: Targets, curvature: Vector | float) -> Vector:
    """Return the step that maximises the dual objective of each sample by itself (specification, 1.5).

    Parameters
    ----------
    dual
        ``alpha``, shape (n,).
    scores
        ``z = x_i^T w``, shape (n,).
    targets
        ``y``, shape (n,).
    curvature
        ``q >= 0``, shape (n,) or one for all. 0 stands for an empty row: then the hinge goes to the end of its interval
        that the score asks for, and stays where it is at a margin of exactly 1.

    Returns
    -------
    Vector
        ``Delta``, shape (n,); ``alpha + Delta`` lies in the domain, in floating point too.
    """
    s = loss.conjugate_curvature
    if s is None:
        best = targets * _logistic_root(targets * dual, targets * scores, curvature)
    else:
        slope = targets - scores - s * dual
        # If s = q = 0, the division by zero gives an infinite step, which is clipped to the edge of the domain.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope == 0, slope, slope / (s + curvature))
        best = feasible(loss, dual + step, targets)
    return best - dual


def _logistic_root(b: Vector, margins: Vector, curvature: Vector | float) -> Vector:
    """Return the ``p`` in [0, 1] where ``ln((1 - p)/p) - m - q (p - b) = 0``, shape (n,).

    With ``t = ln(p/(1 - p))`` the equation is ``t + m + q (p(t) - b) = 0``, whose left side F rises. It is
    convex for t < 0 and concave for t > 0, so Newton's method that starts at 0 goes straight to the root
    and never past it. Roots t > 0 are reflected (t, m, b -> -t, -m, 1 - b): a probability near 0 has
    all its digits, one near 1 has not.
    """
    q = np.asarray(curvature)
    mirrored = margins + q * (0.5 - b) < 0
    m = np.where(mirrored, -margins, margins)
    c = np.where(mirrored, 1 - b, b)
    t = np.minimum(q * c - m, 0)  # F(q c - m) = q p >= 0, so this start does not lie below the root
    for _ in range(NEWTON_LIMIT):
        p = expit(t)
        nearer = t - (t + m + q * (p - c)) / (1 + q * p * (1 - p))
        if not np.any(nearer < t):  # Newton's iterates have converged up to rounding
            break
        t = np.minimum(nearer, t)
    p = expit(t)
    return np.where(mirrored, 1 - p, p)


def scalar_step(loss: MarginLoss) -> ScalarStep:
    """Return :func:`dual_step` for one sample in plain numbers, as sequential methods need it.

    The step takes (dual, score, target, curvature). It is some thirty times faster than arrays of length 1.
    """
    s = loss.conjugate_curvature
    if s is None:
        return _logistic_scalar_step
    curved, (low, high) = s, loss.domain
    bounded = math.isfinite(low)

    def step(dual: float, score: float, target: float, curvature: float) -> float:
        slope = target - score - curved * dual
        if slope == 0:
            best = dual
        else:
            total = curved + curvature
            best = dual + slope / total if total else math.copysign(math.inf, slope)
        if bounded:
            best = target * min(max(target * best, low), high)
        return best - dual

    return step


def _logistic_scalar_step(dual: float, score: float, target: float, curvature: float) -> float:
    """See :func:`_logistic_root`."""
    q, m, c = curvature, target * score, target * dual
    mirrored = m + q * (0.5 - c) < 0
    if mirrored:
        m, c = -m, 1 - c
    t = min(q * c - m, 0.0)
    p = _logistic_function(t)
    for _ in range(NEWTON_LIMIT):
        nearer = t - (t + m + q * (p - c)) / (1 + q * p * (1 - p))
        if not nearer < t:
            break
        t, p = nearer, _logistic_function(nearer)
    return target * (1 - p if mirrored else p) - dual


def _logistic_function(t: float) -> float:
    """``1 / (1 + exp(-t))`` for t <= 0, without overflow."""
    grown = math.exp(t)
    return grown / (1 + grown)


def theory_step(
    loss: MarginLoss, dual: Vector, scores: Vector, targets: Targets, gamma: float, trust: float, l2: float
) -> Vector:
    """Return the step of HyFDCA's Algorithm 3 (specification, 2.6, with the sign of 5.1-E3).

    The step stays on the segment from 0 to ``e = trust (u - alpha)``, where ``-u`` is a subgradient of the
    loss at the score. The dual objective is concave along it, so its best point there is the free
    maximiser, cut off at the ends. For the hinge this is
    ``y clip(l2 (1 - m) / gamma, -trust b, trust (1 - b))``.

    Parameters
    ----------
    loss, dual, scores, targets
        As for :func:`dual_step`.
    gamma
        Outer step size, in (0, 1]; the server will multiply the step by it.
    trust
        ``c_k`` in (0, 1], how far a client may go.
    l2
        ``lambda > 0``, weight of the ridge.

    Returns
    -------
    Vector
        ``Delta``, shape (n,), not multiplied by gamma.
    """
    u = -loss.derivative(scores, targets)
    end = trust * (u - dual)
    free = dual_step(loss, dual, scores, targets, 1 / l2) / gamma
    return np.clip(free, np.minimum(end, 0), np.maximum(end, 0))


def line_terms(loss: MarginLoss, dual: Vector, change: Vector, targets: Targets) -> tuple[Vector, Vector] | None:
    """Return the parabola that the conjugates follow along a line, for the outer line search (3.3).

    Parameters
    ----------
    dual, change, targets
        ``alpha``, ``delta`` and ``y``, shape (n,); ``alpha`` and ``alpha + delta`` are in the domain.

    Returns
    -------
    tuple[Vector, Vector] | None
        ``a`` and ``c``, each of shape (n,), such that ``-l*(-(alpha + g delta)) = -l*(-alpha) + g a - g^2 c / 2`` for g
        in [0, 1]; ``None`` for the logistic loss, whose conjugate is no parabola (see :func:`dual_values`).
    """
    s = loss.conjugate_curvature
    if s is None:
        return None
    linear: Vector = change * (targets - s * dual)
    quadratic: Vector = s * change**2
    return linear, quadratic


def dual_values(loss: MarginLoss, dual: Vector, change: Vector, targets: Targets, steps: Vector) -> NDArray[np.float64]:
    """Return ``sum_i -l_i*(-(alpha_i + g delta_i))`` for each g of ``steps``, shape (J,).

    For a line search with any loss. What rounding pushed out of the domain is put back first.

    Parameters
    ----------
    loss, dual, change, targets
        As for :func:`line_terms`.
    steps
        Step sizes g in [0, 1], shape (J,).
    """
    return np.array(
        [-loss.conjugate(feasible(loss, dual + g * change, targets), targets).sum() for g in steps], dtype=np.float64
    )
