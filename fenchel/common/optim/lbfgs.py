"""Limited-memory BFGS, based on L-BFGS-B of SciPy (Byrd, Lu, Nocedal, Zhu 1995)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.optim.problem import Point, Solved, Tilted
from fenchel.common.optim.stopping import StoppingCriterion, goal_of
from fenchel.common.settings.solver import LbfgsSolver

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

LINE_SEARCH = 40
"""Largest number of points in a line search."""

_PAIRS = 10  # number of stored pairs of steps and gradient changes


def lbfgs(problem: Tilted, start: Vector, settings: LbfgsSolver) -> Solved:
    """Minimise from ``start``, shape (d,).

    Close to the minimiser, rounding errors in function values stop the line search early. The relative accuracy of the
    gradient is then only about the square root of the machine precision. The search therefore continues with
    differences of function values that the trapezoidal rule computes from gradients. These differences are exact for a
    quadratic function and free of that rounding error.
    """
    first = Point.of(problem, start)
    goal = goal_of(settings.stop, settings.kind, first)
    point, done = _search(first, lambda trial: trial.value, goal, goal.limit)
    while done < goal.limit and not goal.reached(point):
        before = point
        point, steps = _search(before, _height_above(before), goal, goal.limit - done)
        done += steps
        if point.norm > before.norm / 2:  # rounding errors dominate the gradient as well
            point = min(point, before, key=lambda each: each.norm)
            break
    return goal.solved(point, done)


def _height_above(reference: Point) -> Callable[[Point], float]:
    """Return a function that estimates ``phi(w) - phi(reference)`` by the trapezoidal rule.

    The estimate is ``(1/2) <grad phi(w) + grad phi(reference), w - reference>``.
    """

    def height(trial: Point) -> float:
        return 0.5 * float((trial.gradient + reference.gradient) @ (trial.w - reference.w))

    return height


def _search(first: Point, value: Callable[[Point], float], goal: StoppingCriterion, limit: int) -> tuple[Point, int]:
    """Return the last point of the search, and the number of iterations.

    SciPy minimises over ``x = (w - first) / length``, scaled so that the first gradient has norm 1. SciPy's first step
    has length 1 in x. If the smoothness beta is known, it is a gradient step of size ``1/beta`` in w, independently of
    the scale of the data. Otherwise, it has length 1 in w as well.
    """
    from scipy.optimize import minimize  # late import, because the import is slow and few processes need it

    if limit < 1 or goal.reached(first):
        return first, 0
    beta = first.problem.objective.smoothness
    length = first.norm / beta if math.isfinite(beta) else 1.0
    last = first

    def at(x: NDArray[np.float64]) -> Point:
        """Return the point at ``x``, cached because a line search usually ends at the latest point."""
        w = (first.w + length * x).astype(first.w.dtype)
        for known in (last, first):
            if np.array_equal(w, known.w):
                return known
        return Point.of(first.problem, w)

    def evaluate(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal last
        last = at(x)
        return value(last) / (length * first.norm), last.gradient.astype(np.float64) / first.norm

    def stop(intermediate_result: OptimizeResult) -> None:
        if goal.reached(at(intermediate_result.x)):
            raise StopIteration

    result = minimize(
        evaluate,
        np.zeros(first.w.size),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options={
            "maxcor": _PAIRS,
            "maxiter": limit,
            "maxfun": LINE_SEARCH * (limit + 1),
            "maxls": LINE_SEARCH,
            "ftol": 0.0,
            "gtol": 0.0,
        },
    )
    return at(result.x), int(result.nit)
