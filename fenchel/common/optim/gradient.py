"""Gradient descent on the whole shard, with and without acceleration.

Acceleration uses a constant momentum for strongly convex functions (Nesterov, "Lectures on Convex Optimization",
2018, section 2.2). For other functions the momentum is that of Beck and Teboulle ("A fast iterative
shrinkage-thresholding algorithm", 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.optim.problem import Point, Solved, Tilted
from fenchel.common.optim.stopping import NOT_OURS, StoppingCriterion, goal_of, too_long
from fenchel.common.settings.solver import GradientSolver


def gradient_descent(problem: Tilted, start: Vector, settings: GradientSolver) -> Solved:
    """Minimise by gradient descent from ``start``, shape (d,), or raise a ``DivergedError``."""
    s = _step_size(problem, settings)
    first = Point.of(problem, start)
    goal = goal_of(settings.stop, settings.kind, first, cure=_cure(problem, settings))
    with np.errstate(over="ignore", invalid="ignore"):
        return _accelerated(first, s, goal) if settings.accelerated else _plain(first, s, goal)


def _step_size(problem: Tilted, settings: GradientSolver) -> float:
    if isinstance(settings.step_size, float):
        return settings.step_size
    if settings.step_size == "2/(alpha+beta)":
        return 2 / (problem.objective.strong_convexity + problem.objective.smoothness)
    beta = problem.objective.smoothness
    return 1 / beta if beta else 1.0


def _cure(problem: Tilted, settings: GradientSolver) -> str:
    """Return the advice of a ``DivergedError``, with the largest safe step size if the smoothness beta is known."""
    if not isinstance(settings.step_size, float):
        return NOT_OURS
    beta, most = problem.objective.smoothness, 1 if settings.accelerated else 2
    known = f"at most {most}/beta = {most / beta:.3g} is safe" if 0 < beta < math.inf else "give a smaller one"
    return too_long("solver.step_size", settings.step_size, known)


def _plain(point: Point, s: float, goal: StoppingCriterion) -> Solved:
    """Iterate ``w <- w - s grad phi(w)``."""
    done = 0
    while done < goal.limit and not goal.reached(point):
        point = Point.of(point.problem, _stepped(point, s))
        done += 1
    return goal.solved(point, done)


def _accelerated(point: Point, s: float, goal: StoppingCriterion) -> Solved:
    """Iterate ``w' = v - s grad phi(v);  v <- w' + m (w' - w)``.

    Only gradients at v are computed. So the result is v if its gradient meets the stopping criterion. At the limit on
    iterations, the result is the last w.
    """
    w, v, done = point.w, point, 0
    for m in _momenta(max(point.problem.objective.strong_convexity, 0.0) * s):
        if goal.reached(v):
            break
        w, before = _stepped(v, s), w
        done += 1
        if done == goal.limit:
            v = Point.of(v.problem, w)
            break
        v = Point.of(v.problem, w + m * (w - before))
    return goal.solved(v, done)


def _momenta(sigma: float) -> Iterator[float]:
    """Yield the momentum of each step, given the strong convexity times the step size, ``sigma``."""
    while sigma:
        root = math.sqrt(min(sigma, 1.0))
        yield (1 - root) / (1 + root)
    t = 1.0
    while True:
        t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        yield (before - 1) / t


def _stepped(point: Point, s: float) -> Vector:
    return point.w - s * point.gradient
