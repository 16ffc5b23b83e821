"""Local problem of a client, and the quantities that solvers use.

    phi(w) = f(w) - <w, tilt>

where f is the client's objective. In FedDCD the tilt is the client's dual variable y
(docs/specifications/feddcd.md, section 1.3): the minimiser of ``f(w) - <w, y>`` is the gradient of the conjugate of f
at y.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fenchel.common.arrays import Dense, Indices, Vector, is_sparse
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective

ROUNDING = 64
"""Bound on the rounding error of a sum, in units in the last place (ulp)."""


@dataclass(frozen=True)
class Tilted:
    """Objective of a client plus a linear term.

    Attributes
    ----------
    objective
        Objective f, the mean loss of the client's samples plus its penalty.
    tilt
        Coefficients of the linear term, shape (d,), converted to the objective's dtype.
    """

    objective: Objective
    tilt: Vector

    def __post_init__(self) -> None:
        if self.tilt.shape != (self.dimension,):
            raise ValueError(f"tilt has shape {self.tilt.shape}; expected ({self.dimension},), the shape of a model")
        object.__setattr__(self, "tilt", self.tilt.astype(self.objective.dtype, copy=False))

    @property
    def dimension(self) -> int:
        """Dimension d of a model."""
        return self.objective.dimension

    def gradient(self, w: Vector) -> Vector:
        """Return the gradient of phi at ``w``, both of shape (d,)."""
        return self.objective.gradient(w) - self.tilt

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of phi at ``w``, with the mean loss of the samples ``rows`` alone, shape (d,)."""
        return self.objective.batch_gradient(w, rows) - self.tilt


@dataclass(frozen=True)
class Solved:
    """Result of a solver.

    Attributes
    ----------
    w
        Approximate minimiser, shape (d,), of the objective's dtype, in memory that the caller owns.
    iterations
        Number of iterations, counted as in :class:`fenchel.common.settings.solver.Stopping`.
    gradient_norm
        Euclidean norm of the gradient of phi at ``w``; nan for sgd and adam, which do not compute it.
    """

    w: Vector
    iterations: int
    gradient_norm: float


class Point:
    """Value and derivatives of phi at one point, computed on first use and cached."""

    def __init__(self, problem: Tilted, w: Vector) -> None:
        self.problem, self.w = problem, w

    @staticmethod
    def of(problem: Tilted, w: Vector) -> Point:
        """Return the point at ``w``, shape (d,), an array that the caller must not change afterwards."""
        if isinstance(problem.objective, LinearObjective):
            return LinearPoint(problem, w, problem.objective)
        return Point(problem, w)

    @cached_property
    def own_value(self) -> float:
        """Objective f(w), without the linear term."""
        return self.problem.objective.value(self.w)

    @cached_property
    def linear_term(self) -> float:
        """Linear term ``-<w, tilt>``."""
        return -float(self.w @ self.problem.tilt)

    @cached_property
    def value(self) -> float:
        """Value phi(w)."""
        return self.own_value + self.linear_term

    @cached_property
    def blur(self) -> float:
        """Bound on the rounding error of differences of function values."""
        size = abs(self.own_value) + abs(self.linear_term)
        return ROUNDING * float(np.finfo(self.w.dtype).eps) * size

    @cached_property
    def gradient(self) -> Vector:
        """The gradient of phi, shape (d,)."""
        return self.problem.gradient(self.w)

    @cached_property
    def norm(self) -> float:
        """Euclidean norm of the gradient."""
        return float(np.linalg.norm(self.gradient))

    @property
    def contributions(self) -> float:
        """Magnitude of the samples' contributions to the gradient, before any cancellation in their sum.

        For a general objective, the contributions are unknown, and the norm of the gradient takes their place.
        """
        return self.norm

    def hessian_vector(self, v: Vector) -> Vector:
        """Return the Hessian of phi times ``v``, both of shape (d,)."""
        return self.problem.objective.hessian_vector(self.w, v)


class LinearPoint(Point):
    """Point of a linear model with cached scores, so that a Hessian-vector product takes two passes over the data."""

    def __init__(self, problem: Tilted, w: Vector, objective: LinearObjective) -> None:
        super().__init__(problem, w)
        self.objective = objective

    @cached_property
    def scores(self) -> Dense:
        """Scores of all samples, shape (n,) or (n, K)."""
        Objective.require(self.objective.samples)
        return self.objective.scores(self.objective.features, self.w)

    @cached_property
    def own_value(self) -> float:
        """Objective f(w), without the linear term."""
        losses = self.objective.score_loss.value(self.scores, self.objective.targets)
        return float(losses.sum(dtype=np.float64)) / self.objective.samples + self.objective.penalty(self.w)

    @cached_property
    def slopes(self) -> Dense:
        """Derivative of each sample's loss with respect to its scores, shape (n,) or (n, K)."""
        return self.objective.score_loss.derivative(self.scores, self.objective.targets)

    @cached_property
    def gradient(self) -> Vector:
        """The gradient of phi, shape (d,)."""
        own = self.objective.combine(self.objective.features, self.slopes.copy(), self.w)
        return own - self.problem.tilt

    @property
    def contributions(self) -> float:
        """Bound on the mean norm of sample gradients: root mean square of slopes times that of feature norms."""
        features = self.objective.features
        entries = features.data if is_sparse(features) else features
        squares = float(np.vdot(entries, entries)) * float(np.vdot(self.slopes, self.slopes))
        return float(np.sqrt(squares)) / self.objective.samples

    def hessian_vector(self, v: Vector) -> Vector:
        """Return the Hessian of phi times ``v``, both of shape (d,)."""
        return self.objective.curved(self.scores, self.w, v)
