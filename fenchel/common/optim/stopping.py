"""Stopping criteria of local solvers (docs/specifications/feddcd.md, section 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.errors import DivergedError
from fenchel.common.optim.problem import Point, Solved
from fenchel.common.settings.solver import Stopping

NOT_OURS = (
    "the solver's own step size cannot be the cause, so the steps of the algorithm have diverged (use smaller ones), "
    "or the features are too large (use data.scale)"
)
"""Advice on divergence for solvers that choose their own step sizes."""

LIMIT = 10_000
"""Default limit on the number of iterations."""

FLOOR = 32
"""Norm of a gradient, in ulps of the magnitude of its summands, below which rounding errors dominate."""


@dataclass(frozen=True)
class StoppingCriterion:
    """Stopping criterion of a solver.

    Attributes
    ----------
    limit
        Largest number of iterations.
    tolerance
        Gradient norm at which the solver stops; 0 for a fixed number of iterations.
    floor, floor_per_norm
        Coefficients of the smallest attainable gradient norm, ``floor + floor_per_norm ||w||``, due to rounding.
    kind
        Name of the solver, for errors.
    cure
        Advice for errors if iterates are not finite.
    """

    limit: int
    tolerance: float = 0.0
    floor: float = 0.0
    floor_per_norm: float = 0.0
    kind: str = ""
    cure: str = NOT_OURS

    def threshold(self, w: Vector) -> float:
        """Return the gradient norm at which the solver stops at ``w``, shape (d,)."""
        if not self.floor:
            return self.tolerance
        return max(self.tolerance, self.floor + self.floor_per_norm * float(np.linalg.norm(w)))

    def reached(self, point: Point) -> bool:
        """Return whether the gradient norm is at most the threshold, or raise a ``DivergedError`` if not finite."""
        threshold = self.threshold(point.w)
        if not (math.isfinite(point.norm) and math.isfinite(threshold)):
            raise diverged(self.kind, self.cure)
        return point.norm <= threshold

    def solved(self, point: Point, iterations: int) -> Solved:
        """Return the point as a solver's result, or raise a ``DivergedError`` if its gradient norm is not finite."""
        self.reached(point)
        return Solved(point.w, iterations, point.norm)


def diverged(kind: str, cure: str) -> DivergedError:
    """Return the error of a solver whose iterates have diverged to non-finite values."""
    return DivergedError(
        f"{kind} diverged, because its model or gradient is no longer finite; {cure}", key="solver.kind"
    )


def too_long(key: str, step: float, limit: str) -> str:
    """Return advice for a setting whose step size made a solver diverge."""
    return f"{key}: {step:g} is too long a step for this client's samples; {limit}"


def goal_of(stop: Stopping, kind: str, first: Point, *, cure: str = NOT_OURS) -> StoppingCriterion:
    """Return the stopping criterion of a solver that starts at ``first``.

    The criterion ``||grad phi(w)|| <= sqrt(delta) (alpha/beta) ||grad phi(w0)||`` ensures the accuracy delta, because
    ``||w - w*|| <= ||grad phi(w)|| / alpha`` and ``||w0 - w*|| >= ||grad phi(w0)|| / beta``.

    Parameters
    ----------
    first
        Starting point of the solver.
    cure
        Advice for errors if iterates are not finite.
    """
    limit = stop.steps or LIMIT
    if stop.accuracy is None:
        return StoppingCriterion(limit, stop.gradient or 0.0, kind=kind, cure=cure)
    alpha, beta = first.problem.objective.strong_convexity, first.problem.objective.smoothness
    epsilon = float(np.finfo(first.w.dtype).eps)
    return StoppingCriterion(
        limit,
        tolerance=math.sqrt(stop.accuracy) * alpha / beta * first.norm,
        floor=FLOOR * epsilon * (first.contributions + float(np.linalg.norm(first.problem.tilt))),
        floor_per_norm=epsilon * beta,  # gradient error due to rounding of the model, per unit of the model's norm
        kind=kind,
        cure=cure,
    )
