"""Exact steps along single dual coordinates, vectorised over samples (docs/specifications/hyfdca.md, section 1.5).

For the regularised problem

    P(w) = (l2/2) ||w||^2 + (1/N) sum_i l_i(x_i^T w)

the dual variable of sample i, ``alpha``, moves by the ``Delta`` that maximises

    -l*(-(alpha + Delta)) - Delta z - (q/2) Delta^2

where ``z`` is the sample's score and ``q = sigma ||x_i||^2 / (l2 N)`` the curvature. Four of the five losses have a
quadratic conjugate on an interval, ``l*(-alpha) = -alpha y + s alpha^2 / 2``. These losses differ only in ``s`` and in
the interval, so they share one formula. For the logistic loss, the step is the root of an equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.objectives.losses import MarginLoss, Targets

ScalarStep: TypeAlias = Callable[[float, float, float, float], float]
"""Function that maps the dual variable, score, target and curvature of a sample to the sample's step."""

NEWTON_LIMIT = 200
"""Limit on Newton's iterations. About ln(q) + 5 suffice, such as 26 for a curvature of 1e9."""


def feasible(loss: MarginLoss, dual: Vector, targets: Targets) -> Vector:
    """Return the nearest dual variables with a finite conjugate, shape (n,).

    Rounding to fixed-point numbers can move dual variables slightly out of the domain. The returned values serve only
    to evaluate the dual objective. Clients must not send them to the server (docs/specifications/hyfdca.md, 5.1-E16).
    """
    low, high = loss.domain
    if math.isinf(low):
        return dual.copy()
    return targets * np.clip(targets * dual, low, high)


def dual_step(loss: MarginLoss, dual: Vector, scores: Vector, targets: Targets, curvature: Vector | float) -> Vector:
    """Return the steps that maximise the dual objective along each sample's coordinate separately.

    The formulas are those of docs/specifications/hyfdca.md, section 1.5.

    Parameters
    ----------
    dual
        Dual variables ``alpha``, shape (n,).
    scores
        Scores ``z = x_i^T w``, shape (n,).
    targets
        Targets ``y``, shape (n,).
    curvature
        Curvatures ``q >= 0``, shape (n,), or one number for all samples. For ``q = 0``, an empty row, the hinge's dual
        variable moves to the maximising end of its interval. It does not move at a margin of exactly 1.

    Returns
    -------
    Vector
        Steps ``Delta``, shape (n,), such that ``alpha + Delta`` lies in the domain even after rounding.
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
    """Return the roots ``p`` in [0, 1] of ``ln((1 - p)/p) - m - q (p - b) = 0``, shape (n,).

    With ``t = ln(p/(1 - p))`` the equation is ``F(t) = t + m + q (p(t) - b) = 0``. The function F is increasing, convex
    for t < 0 and concave for t > 0. So Newton's method converges monotonically from any start between the root and 0.
    Roots t > 0 are reflected by (t, m, b) -> (-t, -m, 1 - b), because floating point is more accurate for
    probabilities near 0 than near 1.
    """
    q = np.asarray(curvature)
    mirrored = margins + q * (0.5 - b) < 0
    m = np.where(mirrored, -margins, margins)
    c = np.where(mirrored, 1 - b, b)
    t = np.minimum(q * c - m, 0)  # F(q c - m) = q p >= 0, so this start does not lie below the root
    for _ in range(NEWTON_LIMIT):
        p = scipy.special.expit(t)
        nearer = t - (t + m + q * (p - c)) / (1 + q * p * (1 - p))
        if not np.any(nearer < t):  # Newton's iterates have converged up to rounding
            break
        t = np.minimum(nearer, t)
    p = scipy.special.expit(t)
    return np.where(mirrored, 1 - p, p)


def scalar_step(loss: MarginLoss) -> ScalarStep:
    """Return a scalar version of :func:`dual_step` for sequential methods.

    The returned function takes (dual, score, target, curvature) of one sample. It is about thirty times faster than
    :func:`dual_step` on arrays of length 1.
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
    """Return the dual step of one sample for the logistic loss.

    This is the root of :func:`_logistic_root` in scalar arithmetic, times the target, minus the dual variable.
    """
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
    """Return ``1 / (1 + exp(-t))`` for t <= 0, without overflow."""
    grown = math.exp(t)
    return grown / (1 + grown)


def theory_step(
    loss: MarginLoss, dual: Vector, scores: Vector, targets: Targets, gamma: float, trust: float, l2: float
) -> Vector:
    """Return the steps of HyFDCA's Algorithm 3.

    The algorithm is that of docs/specifications/hyfdca.md, section 2.6, with the sign of 5.1-E3. The step lies on the
    segment from 0 to ``e = trust (u - alpha)``, where ``-u`` is a subgradient of the loss at the score. The dual
    objective is concave along the segment, so the step is the unconstrained maximiser, clipped to the segment. For the
    hinge this is ``y clip(l2 (1 - m) / gamma, -trust b, trust (1 - b))``.

    Parameters
    ----------
    loss, dual, scores, targets
        Arguments as for :func:`dual_step`.
    gamma
        Outer step size in (0, 1], by which the server multiplies the step.
    trust
        Trust parameter ``c_k`` of a client, in (0, 1], which bounds the length of the step.
    l2
        Weight of the ridge, ``lambda > 0``.

    Returns
    -------
    Vector
        Steps ``Delta``, shape (n,), not yet multiplied by gamma.
    """
    u = -loss.derivative(scores, targets)
    end = trust * (u - dual)
    free = dual_step(loss, dual, scores, targets, 1 / l2) / gamma
    return np.clip(free, np.minimum(end, 0), np.maximum(end, 0))


def line_terms(loss: MarginLoss, dual: Vector, change: Vector, targets: Targets) -> tuple[Vector, Vector] | None:
    """Return the quadratic coefficients of the conjugates along a line, for the outer line search.

    The line search is that of docs/specifications/hyfdca.md, section 3.3.

    Parameters
    ----------
    dual, change, targets
        Dual variables ``alpha``, changes ``delta`` and targets ``y``, each of shape (n,), with ``alpha`` and ``alpha +
        delta`` in the domain.

    Returns
    -------
    tuple[Vector, Vector] | None
        Coefficients ``a`` and ``c``, each of shape (n,), with ``-l*(-(alpha + g delta)) = -l*(-alpha) + g a - g^2 c /
        2`` for g in [0, 1]. ``None`` for the logistic loss, whose conjugate is not quadratic (see :func:`dual_values`).
    """
    s = loss.conjugate_curvature
    if s is None:
        return None
    linear: Vector = change * (targets - s * dual)
    quadratic: Vector = s * change**2
    return linear, quadratic


def dual_values(loss: MarginLoss, dual: Vector, change: Vector, targets: Targets, steps: Vector) -> NDArray[np.float64]:
    """Return ``sum_i -l_i*(-(alpha_i + g delta_i))`` for each step size g, shape (J,).

    The line search uses these values for any loss. Dual variables that rounding moved out of the domain are projected
    onto the domain first.

    Parameters
    ----------
    loss, dual, change, targets
        Arguments as for :func:`line_terms`.
    steps
        Step sizes g in [0, 1], shape (J,).
    """
    return np.array(
        [-loss.conjugate(feasible(loss, dual + g * change, targets), targets).sum() for g in steps], dtype=np.float64
    )
