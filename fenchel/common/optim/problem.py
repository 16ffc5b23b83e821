"""The problem that a client solves, and what a solver may ask about it.

    phi(w) = f(w) - <w, tilt> + (mu/2) ||w - anchor||^2

where f is the client's objective. The tilt is a client's dual variable in FedDCD (its specification,
section 1.3): the minimiser of ``f(w) - <w, y>`` is the gradient of the conjugate of f at y.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective

ROUNDING = 64
"""How many units in the last place a sum may be wrong by."""


@dataclass(frozen=True)
class Tilted:
    """A client's objective with a linear term, and a quadratic one that ties the model to an anchor.

    Attributes
    ----------
    objective
        f, the mean loss of the client's samples plus its penalty.
    tilt
        Shape (d,); converted to the objective's dtype.
    proximal
        Weight mu of the tie, at least 0.
    anchor
        Shape (d,); given if and only if ``proximal`` is not 0. Converted to the objective's dtype.
    """

    objective: Objective
    tilt: Vector
    proximal: float = 0.0
    anchor: Vector | None = None

    def __post_init__(self) -> None:
        if self.proximal < 0 or (self.anchor is None) != (self.proximal == 0):
            raise ValueError("give an anchor and a proximal weight above 0, or neither")
        for name in ("tilt", "anchor"):
            vector = getattr(self, name)
            if vector is None:
                continue
            if vector.shape != (self.dimension,):
                raise ValueError(f"{name} has shape {vector.shape}, the objective {self.dimension} numbers")
            object.__setattr__(self, name, vector.astype(self.objective.dtype, copy=False))

    @property
    def dimension(self) -> int:
        """Length d of a model."""
        return self.objective.dimension

    @property
    def smoothness(self) -> float:
        """beta: an upper bound on the Lipschitz constant of the gradient; infinity if none is known."""
        return self.objective.smoothness + self.proximal

    @property
    def strong_convexity(self) -> float:
        """alpha: a lower bound on the strong convexity; minus infinity if none is known."""
        return self.objective.strong_convexity + self.proximal

    def value(self, w: Vector) -> float:
        """Return phi at ``w``, shape (d,)."""
        return self.objective.value(w) + sum(self.terms(w))

    def gradient(self, w: Vector) -> Vector:
        """Return the gradient of phi at ``w``, both of shape (d,)."""
        return self.objective.gradient(w) + self.slant(w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of phi with the mean over some samples only, shape (d,)."""
        return self.objective.batch_gradient(w, rows) + self.slant(w)

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian of phi at ``w`` times ``v``, all of shape (d,)."""
        curved = self.objective.hessian_vector(w, v)
        return curved + self.proximal * v if self.proximal else curved

    def terms(self, w: Vector) -> tuple[float, float]:
        """Return the values at ``w`` of the two terms that were added to the objective."""
        tie = 0.0
        if self.anchor is not None:
            apart = w - self.anchor
            tie = 0.5 * self.proximal * float(apart @ apart)
        return -float(w @ self.tilt), tie

    def slant(self, w: Vector) -> Vector:
        """Return the gradient at ``w`` of the terms that were added to the objective, shape (d,)."""
        if self.anchor is None:
            return -self.tilt
        return self.proximal * (w - self.anchor) - self.tilt


@dataclass(frozen=True)
class Solved:
    """What a solver found.

    Attributes
    ----------
    w
        The approximate minimiser, shape (d,), of the objective's dtype; the caller owns it.
    iterations
        Iterations done, counted as :class:`fenchel.common.settings.solver.Stopping` says.
    gradient_norm
        Euclidean norm of the gradient of phi at ``w``; not a number for sgd and adam, which do not look.
    """

    w: Vector
    iterations: int
    gradient_norm: float


class Point:
    """phi at one point: nothing is computed before it is asked for, nor twice."""

    def __init__(self, problem: Tilted, w: Vector) -> None:
        self.problem, self.w = problem, w

    @staticmethod
    def of(problem: Tilted, w: Vector) -> Point:
        """Return what can be known of phi at ``w``, shape (d,), which must not change any more."""
        if isinstance(problem.objective, LinearObjective):
            return LinearPoint(problem, w, problem.objective)
        return Point(problem, w)

    @cached_property
    def own_value(self) -> float:
        """f(w): the objective without the terms that were added to it."""
        return self.problem.objective.value(self.w)

    @cached_property
    def value(self) -> float:
        """phi(w)."""
        return self.own_value + sum(self.problem.terms(self.w))

    @cached_property
    def blur(self) -> float:
        """Differences of values below this one are rounding errors."""
        size = abs(self.own_value) + sum(map(abs, self.problem.terms(self.w)))
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
        """Size of what the samples contribute to the gradient; how much may cancel in their sum."""
        return self.norm

    def hessian_vector(self, v: Vector) -> Vector:
        """Return the Hessian of phi times ``v``, both of shape (d,); see :meth:`Tilted.hessian_vector`."""
        return self.problem.hessian_vector(self.w, v)


class LinearPoint(Point):
    """A point of a linear model. The scores are kept: with them a Hessian-vector product is two passes."""

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
        """f(w)."""
        losses = self.objective.score_loss.value(self.scores, self.objective.targets)
        return float(losses.sum(dtype=np.float64)) / self.objective.samples + self.objective.penalty(self.w)

    @cached_property
    def slopes(self) -> Dense:
        """Derivative of each sample's loss in its scores, shape (n,) or (n, K)."""
        return self.objective.score_loss.derivative(self.scores, self.objective.targets)

    @cached_property
    def gradient(self) -> Vector:
        """The gradient of phi, shape (d,)."""
        own = self.objective.combine(self.objective.features, self.slopes.copy(), self.w)
        return own + self.problem.slant(self.w)

    @property
    def contributions(self) -> float:
        """Root mean square of the slopes times that of the samples' norms: bounds the mean of the products."""
        features = self.objective.features
        entries = features.data if isinstance(features, sp.csr_array) else features
        squares = float(np.vdot(entries, entries)) * float(np.vdot(self.slopes, self.slopes))
        return float(np.sqrt(squares)) / self.objective.samples

    def hessian_vector(self, v: Vector) -> Vector:
        """Return the Hessian of phi times ``v``, both of shape (d,)."""
        features, targets = self.objective.features, self.objective.targets
        direction = self.objective.scores(features, v)
        curved = self.objective.score_loss.curve(self.scores, targets, direction)
        product = self.objective.combine(features, curved, v)
        if self.problem.proximal:
            product += self.problem.proximal * v
        return product
