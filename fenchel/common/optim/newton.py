"""Newton's method with backtracking, based on the Hessian or on Hessian-vector products.

The methods are those of Nocedal and Wright, "Numerical Optimization", 2006, sections 3.1 and 7.1. Losses with a
piecewise linear derivative have no second derivative at its corners. Either one-sided value is valid there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy

from fenchel.common.arrays import Dense, Vector, is_sparse
from fenchel.common.optim.conjugate_gradients import conjugate_gradients
from fenchel.common.optim.problem import LinearPoint, Point, Solved, Tilted
from fenchel.common.optim.stopping import StoppingCriterion, goal_of
from fenchel.common.settings.solver import NewtonCgSolver, NewtonSolver

ARMIJO = 1e-4
"""Fraction of the decrease predicted by the gradient that a step must achieve (Armijo's condition)."""

HALVINGS = 60
"""Largest number of halvings of a step."""

_PRODUCTS = 1000  # limit on the Hessian-vector products in one step of newton-cg


def newton(problem: Tilted, start: Vector, settings: NewtonSolver) -> Solved:
    """Minimise from ``start``, shape (d,), by steps ``-H^{-1} g`` with backtracking."""
    first = Point.of(problem, start)
    return _descend(first, _cholesky_step, goal_of(settings.stop, settings.kind, first))


def newton_cg(problem: Tilted, start: Vector, settings: NewtonCgSolver) -> Solved:
    """Minimise from ``start``, shape (d,), by approximate solutions p of ``H p = -g``, with backtracking.

    The tolerance of the solutions decreases with the norm of g.
    """
    first = Point.of(problem, start)
    goal = goal_of(settings.stop, settings.kind, first)

    def step(point: Point) -> Vector:
        # The forcing term gives superlinear convergence. Accuracy beyond the stopping criterion would be wasted.
        forcing = min(0.25, math.sqrt(point.norm / first.norm)) * point.norm
        tolerance = max(forcing, goal.threshold(point.w) / 2)
        return conjugate_gradients(point.hessian_vector, -point.gradient, tolerance=tolerance, limit=_PRODUCTS)

    return _descend(first, step, goal)


def _descend(point: Point, step: Callable[[Point], Vector], goal: StoppingCriterion) -> Solved:
    done = 0
    while done < goal.limit and not goal.reached(point):
        further = _backtrack(point, step(point))
        if further is None:
            break
        point = further
        done += 1
    return goal.solved(point, done)


def _backtrack(point: Point, p: Vector) -> Point | None:
    """Return the first of the points ``w + p, w + p/2, w + p/4, ...`` with a sufficient decrease, or ``None``.

    Close to the minimiser, differences of function values vanish in rounding errors long before the gradient does. A
    step must then decrease the norm of the gradient instead.
    """
    slope = float(point.gradient @ p)
    if not slope < 0:
        return None
    length = 1.0
    for _ in range(HALVINGS):
        trial = Point.of(point.problem, point.w + length * p)
        promised = -length * slope
        if promised <= point.blur:
            return trial if trial.norm < point.norm else None
        if trial.value <= point.value - ARMIJO * promised:
            return trial
        length /= 2
    return None


def _cholesky_step(point: Point) -> Vector:
    """Return ``-H^{-1} g``, shape (d,), with a multiple of the identity added to an H that is not positive definite."""
    matrix = _hessian(point)
    identity = np.eye(*matrix.shape, dtype=matrix.dtype)
    largest = float(np.abs(matrix).max()) or 1.0  # the Hessian is zero where a squared hinge is flat
    shift = 0.0
    while True:
        try:
            factor = scipy.linalg.cho_factor(matrix + shift * identity if shift else matrix, lower=True)
            break
        except scipy.linalg.LinAlgError:
            shift = 10 * shift or largest * math.sqrt(float(np.finfo(matrix.dtype).eps))
    return -scipy.linalg.cho_solve(factor, point.gradient)


def _hessian(point: Point) -> Dense:
    """Return the Hessian of phi, shape (d, d)."""
    if isinstance(point, LinearPoint):
        return _hessian_of_linear(point)
    unit = np.eye(point.problem.dimension, dtype=point.w.dtype)
    return np.stack([point.hessian_vector(direction) for direction in unit])


def _hessian_of_linear(point: LinearPoint) -> Dense:
    """Return the Hessian, shape (K m, K m), with blocks ``X^T diag(second derivatives) X / n`` for pairs of outputs."""
    objective, outputs = point.objective, point.objective.outputs
    features = objective.features
    samples, width = features.shape
    hessian = np.zeros((objective.dimension, objective.dimension), objective.dtype)
    for k in range(outputs):
        direction = np.zeros((samples, outputs), objective.dtype)
        direction[:, k] = 1
        shaped = direction if outputs > 1 else direction[:, 0]
        curves = objective.score_loss.curve(point.scores, objective.targets, shaped).reshape(samples, outputs)
        for other in range(k + 1):
            weights = curves[:, other] / samples
            block = (
                (features.T @ scipy.sparse.diags_array(weights) @ features).toarray()
                if is_sparse(features)
                else features.T @ (weights[:, None] * features)
            )
            here, there = slice(k * width, (k + 1) * width), slice(other * width, (other + 1) * width)
            hessian[here, there] = block
            hessian[there, here] = block.T
    hessian[np.diag_indices_from(hessian)] += objective.l2
    return hessian
