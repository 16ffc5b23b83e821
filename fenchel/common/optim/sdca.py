"""Stochastic dual coordinate ascent for the centralised solution of a problem on one machine.

The method is that of Shalev-Shwartz and Zhang 2013, in the notation of docs/specifications/hyfdca.md, sections 1.1 to
1.5:

    P(w) = (l2/2) ||w||^2 + (1/N) sum_i c_i l_i(x_i^T w)
    D(alpha) = -(l2/2) ||w(alpha)||^2 - (1/N) sum_i c_i l_i*(-alpha_i)
    w(alpha) = (1/(l2 N)) sum_i c_i alpha_i x_i

The weights c_i have mean 1. They are all 1 if samples have equal weights, and n/(K n_k) if K clients have equal
weights. Every pair satisfies ``D(alpha) <= P(w)``, so the duality gap bounds the distance of both values from the
optimum. The federated algorithms are measured against this optimum.

Coordinate ascent quickly identifies the dual variables at an edge of their interval. For the hinge, the other, free
variables converge slowly. The dual objective is quadratic in the free variables. So conjugate gradients optimise all
free variables jointly every few passes (as in Moré and Toraldo 1991, with coordinate ascent in place of projected
gradients).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from fenchel.common.arrays import Indices, Matrix, Vector, is_sparse
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.coordinate import feasible, scalar_step
from fenchel.common.objectives.losses import MarginLoss, Targets
from fenchel.common.optim.conjugate_gradients import conjugate_gradients
from fenchel.common.randomness import generator

TOLERANCE = 1e-9
"""Default limit on the duality gap of a solution."""

MAX_PASSES = 10_000
"""Default limit on the number of passes over the samples."""

_PASSES_PER_FACE = 3
_GRADIENTS_PER_FACE = 60
_HALVINGS = 30


@dataclass(frozen=True)
class Solution:
    """Result of the solver.

    Attributes
    ----------
    dual
        Dual variables ``alpha``, one for each sample, shape (N,), in the domain of the conjugate.
    primal
        Primal model ``w(alpha)``, shape (m,).
    primal_objective, dual_objective
        Primal and dual objectives ``P(w)`` and ``D(alpha)``, between which the optimum lies.
    passes
        Number of passes over the samples.
    """

    dual: Vector
    primal: Vector
    primal_objective: float
    dual_objective: float
    passes: int

    @property
    def gap(self) -> float:
        """Duality gap ``P(w) - D(alpha)``."""
        return self.primal_objective - self.dual_objective


@dataclass(frozen=True)
class DualProblem:
    """Dual of the regularised problem of a linear model.

    Attributes
    ----------
    loss
        Loss of a sample, one of the five losses of one score.
    features
        Features of all samples, shape (N, m), dense or CSR, float64.
    targets
        Targets ``y``, shape (N,).
    l2
        Weight ``l2 > 0`` of the ridge.
    weights
        Weights ``c`` of the samples, shape (N,), positive, of mean 1; ``None`` for equal weights.
    """

    loss: MarginLoss
    features: Matrix
    targets: Targets
    l2: float
    weights: Vector | None = None

    @classmethod
    def of(cls, loss: MarginLoss, shard: Shard, l2: float, weights: Vector | None = None) -> DualProblem:
        """Return the problem of a shard, whose samples must have all features.

        Raise a ``SettingsError`` unless ``l2`` is positive and fits the labels, or a ``DataError`` without samples.
        """
        if not l2 > 0:
            raise SettingsError(
                f"objective.l2: {l2:g} given, but SDCA solves the dual, which exists only for l2 > 0; raise l2, or "
                "use another solver"
            )
        if not shard.samples:
            raise DataError("the training set has no samples; use a data set with at least one")
        targets = loss.targets(shard.labels, shard.classes, np.float64)
        return cls(loss, shard.features.astype(np.float64, copy=False), targets, l2, weights)

    @property
    def samples(self) -> int:
        """Number N of samples."""
        return int(self.targets.shape[0])

    @property
    def curvature(self) -> Vector:
        """Curvatures ``q_i = c_i ||x_i||^2 / (l2 N)``, shape (N,)."""
        squares = self.features * self.features
        return self.weighted(np.asarray(squares.sum(axis=1)) / (self.l2 * self.samples))

    def primal(self, dual: Vector) -> Vector:
        """Return the primal model ``w(alpha)``, shape (m,)."""
        return (self.weighted(dual) @ self.features) / (self.l2 * self.samples)

    def weighted(self, values: Vector) -> Vector:
        """Return the values of the samples times their weights ``c_i``, shape (N,)."""
        return values if self.weights is None else self.weights * values

    def dual_objective(self, dual: Vector, w: Vector) -> float:
        """Return the dual objective ``D(alpha)``, given ``w = w(alpha)``, shape (m,)."""
        conjugates = self.loss.conjugate(dual, self.targets)
        return float(-self.l2 / 2 * (w @ w) - self.weighted(conjugates).mean())

    def primal_objective(self, w: Vector) -> float:
        """Return the primal objective ``P(w)``."""
        losses = self.loss.value(self.features @ w, self.targets)
        return float(self.l2 / 2 * (w @ w) + self.weighted(losses).mean())


def solve(
    loss: MarginLoss,
    shard: Shard,
    l2: float,
    *,
    tolerance: float = TOLERANCE,
    max_passes: int = MAX_PASSES,
    seed: int = 0,
    weights: Vector | None = None,
) -> Solution:
    """Solve the regularised problem of a linear model on a whole data set.

    Parameters
    ----------
    l2
        Weight of the ridge, above 0.
    tolerance
        Duality gap at which the solver stops.
    max_passes
        Largest number of passes over the samples. If it is reached, the gap may exceed the tolerance.
    seed
        Seed of the order of the samples in each pass.
    weights
        Weights of the samples, shape (N,), positive, of mean 1; ``None`` for equal weights.

    Raises
    ------
    SettingsError
        If ``l2`` is not positive, or the loss does not support the labels.
    DataError
        If there are no samples.
    """
    problem = DualProblem.of(loss, shard, l2, weights)
    dual: Vector = np.zeros(problem.samples)
    curvature, passes = problem.curvature, 0
    while True:
        w = problem.primal(dual)  # recomputed in each pass to limit the accumulation of rounding errors
        found = Solution(dual, w, problem.primal_objective(w), problem.dual_objective(dual, w), passes)
        if found.gap <= tolerance or passes == max_passes:
            return found
        order = generator(seed, "sdca", passes).permutation(problem.samples)
        dual, _ = ascend(problem, dual, w, order, curvature)
        passes += 1
        if passes % _PASSES_PER_FACE == 0:
            dual = settle(problem, dual)


def ascend(problem: DualProblem, dual: Vector, w: Vector, order: Indices, curvature: Vector) -> tuple[Vector, Vector]:
    """Maximise the dual objective exactly along one dual variable after another.

    Parameters
    ----------
    dual, w
        Dual variables ``alpha``, shape (N,), and the model ``w(alpha)``, shape (m,). Both arrays stay unchanged.
    order
        Positions of the samples to visit, shape (n,), of any length.
    curvature
        Curvatures :attr:`DualProblem.curvature`, shape (N,).

    Returns
    -------
    tuple[Vector, Vector]
        New dual variables and the new model.
    """
    step, w = scalar_step(problem.loss), w.copy()
    alpha, y, q = dual.tolist(), problem.targets.tolist(), curvature.tolist()
    scale = problem.weighted(np.full(problem.samples, 1 / (problem.l2 * problem.samples))).tolist()
    features = problem.features
    if is_sparse(features):
        values, columns, starts = features.data, features.indices, features.indptr.tolist()
        for i in order.tolist():
            row = slice(starts[i], starts[i + 1])
            x, held = values[row], columns[row]
            delta = step(alpha[i], float(x @ w[held]), y[i], q[i])
            if delta:
                alpha[i] += delta
                w[held] += (delta * scale[i]) * x  # no duplicate columns in a row, so += with an index array is safe
    else:
        for i in order.tolist():
            x = features[i]
            delta = step(alpha[i], float(x @ w), y[i], q[i])
            if delta:
                alpha[i] += delta
                w += (delta * scale[i]) * x
    return np.array(alpha), w


def settle(problem: DualProblem, dual: Vector) -> Vector:
    """Maximise jointly over the free dual variables, which lie inside their intervals, and clip the result.

    For the logistic loss, whose dual objective is not quadratic, the dual variables are returned unchanged.

    Parameters
    ----------
    dual
        Dual variables ``alpha``, shape (N,), in the domain of the conjugate.

    Returns
    -------
    Vector
        Dual variables, shape (N,), in the domain, whose dual objective is at least that of ``dual``.
    """
    s = problem.loss.conjugate_curvature
    low, high = problem.loss.domain
    b = problem.targets * dual
    free = np.flatnonzero((b > low) & (b < high))
    if s is None or not free.size:
        return dual
    w = problem.primal(dual)
    x, y, start = problem.features[free], problem.targets[free], dual[free]
    slope = y - x @ w - s * start
    if problem.weights is None:
        change = _solve(x, s, problem.l2 * problem.samples, slope)
    else:  # Scaling variable i by sqrt(c_i) makes the matrix symmetric.
        root = np.sqrt(problem.weights[free])
        scaled = scipy.sparse.csr_array(x.multiply(root[:, None])) if is_sparse(x) else root[:, None] * x
        change = _solve(scaled, s, problem.l2 * problem.samples, root * slope) / root
    best = problem.dual_objective(dual, w)
    for halving in range(_HALVINGS):
        moved = dual.copy()
        moved[free] = feasible(problem.loss, start + change / 2**halving, y)
        if problem.dual_objective(moved, problem.primal(moved)) > best:
            return moved
    return dual


def _solve(x: Matrix, s: float, scale: float, slope: Vector) -> Vector:
    """Solve ``(s I + x x^T / scale) v = slope`` approximately, or return an ascent direction without curvature."""
    return conjugate_gradients(
        lambda v: s * v + x @ (v @ x) / scale,
        slope,
        tolerance=1e-12 * float(np.linalg.norm(slope)),
        limit=_GRADIENTS_PER_FACE,
        flat=1e-14,
    )
