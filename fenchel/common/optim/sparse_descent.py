"""Stochastic (sub)gradient descent on a linear model, in time proportional to the non-zeros of the visited samples.

In each step, the ridge shrinks every weight, and an optional anchor attracts every weight. The loss changes only the
weights of the sample's non-zero features. For a sample with a hundred non-zeros among a million features, shrinking
and attraction would dominate the cost. So the iterate is represented as

    v = s u + r c        (c: the anchor; s, r: numbers)

where shrinking and attraction change only ``s`` and ``r``. This is the lazy scaling of Pegasos (Shalev-Shwartz,
Singer, Srebro, Cotter, "Pegasos: primal estimated sub-gradient solver for SVM", 2011, section 2.4), extended by an
anchor. The representation is exact: the result differs from that of steps on ``v`` only by rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Dense, Indices, Matrix, Vector, is_sparse
from fenchel.common.objectives.linear import LinearObjective


def descend(
    objective: LinearObjective,
    start: Vector,
    batches: Iterable[Indices],
    *,
    step_size: float,
    pull: float = 0.0,
    anchor: Vector | None = None,
) -> Vector:
    """Return the model after (sub)gradient steps on ``loss + (l2/2) ||v||^2 + (pull/2) ||v - anchor||^2``.

    A step on the batch B, with the scores ``z_i = x_i^T v``, is

        v <- v - step_size ( (1/|B|) sum_{i in B} l'(z_i) x_i  +  l2 v  +  pull (v - anchor) )

    The cost of a step is proportional to the number of non-zero values in the batch. Only the initialisation and the
    final conversion cost O(m) for m features. With a too large step size, the iterate diverges without an error. The
    result then has non-finite values, which the server rejects.

    Parameters
    ----------
    objective
        Linear objective with one score per sample and dense or sparse features.
    start
        Initial model, shape (m,). The array stays unchanged.
    batches
        Positions of the samples of each step, as from :meth:`LinearObjective.batches`.
    step_size
        Step size, at least 0.
    pull
        Weight of the anchor, at least 0.
    anchor
        Anchor, shape (m,), required only if ``pull`` is not 0.

    Returns
    -------
    Vector
        Final model, shape (m,), of the dtype of ``start``, in a new array.
    """
    iterate = _Iterate(start.copy(), anchor if pull else None)
    shrink, shift = 1 - step_size * (objective.l2 + pull), step_size * pull
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in batches:
            batch = _batch(objective.features, rows)
            slopes = objective.score_loss.derivative(iterate.scores(batch), objective.targets[rows])
            iterate.contract(shrink, shift)
            iterate.subtract(batch, slopes * (step_size / rows.size))
        return iterate.value()


@dataclass(frozen=True)
class _DenseBatch:
    x: Dense

    def scores(self, v: Vector) -> Vector:
        """Return the scores ``X_B v``, shape (b,)."""
        return self.x @ v

    def subtract_from(self, v: Vector, weights: Vector) -> None:
        """Subtract ``X_B^T weights`` from ``v`` in place, given weights of shape (b,)."""
        v -= weights @ self.x


@dataclass(frozen=True)
class _SparseBatch:
    x: scipy.sparse.csr_array

    def scores(self, v: Vector) -> Vector:
        return self.x @ v

    def subtract_from(self, v: Vector, weights: Vector) -> None:
        # Samples may share a feature, and v[columns] -= ... would apply only one of their updates.
        np.subtract.at(v, self.x.indices, np.repeat(weights, np.diff(self.x.indptr)) * self.x.data)


@dataclass(frozen=True)
class _SparseSample:
    """One row of a sparse matrix, accessed directly because SciPy's row slicing is slow."""

    columns: NDArray[np.signedinteger[Any]]
    values: Vector

    def scores(self, v: Vector) -> Vector:
        return np.array([self.values @ v[self.columns]], v.dtype)

    def subtract_from(self, v: Vector, weights: Vector) -> None:
        np.subtract.at(v, self.columns, weights[0] * self.values)


_Batch: TypeAlias = _DenseBatch | _SparseBatch | _SparseSample


def _batch(features: Matrix, rows: Indices) -> _Batch:
    if not is_sparse(features):
        return _DenseBatch(features[rows])
    if rows.size > 1:
        return _SparseBatch(features[rows])
    start, end = features.indptr[rows[0] : rows[0] + 2]
    return _SparseSample(features.indices[start:end], features.data[start:end])


class _Iterate:
    """Iterate in the representation ``v = s u + r c``, or ``v = s u`` without an anchor c."""

    def __init__(self, u: Vector, c: Vector | None) -> None:
        self.s, self.r = 1.0, 0.0
        self.u, self.c = u, c
        tiny = float(np.finfo(u.dtype).tiny)
        self._smallest, self._largest = tiny**0.25, tiny**-0.25  # range of |s| that keeps u from underflow and overflow

    def scores(self, batch: _Batch) -> Vector:
        scores = self.s * batch.scores(self.u)
        return scores if self.c is None else scores + self.r * batch.scores(self.c)

    def contract(self, factor: float, shift: float) -> None:
        """Replace ``v`` by ``factor v + shift c``."""
        self.s, self.r = factor * self.s, factor * self.r + shift
        if not self._smallest < abs(self.s) < self._largest:  # also rescale at s = 0, as a factor may be 0
            self.u, self.s, self.r = self.value(), 1.0, 0.0

    def subtract(self, batch: _Batch, weights: Vector) -> None:
        """Replace ``v`` by ``v - X_B^T weights``."""
        batch.subtract_from(self.u, weights / self.s)

    def value(self) -> Vector:
        v: Vector = self.s * self.u
        return v if self.c is None else v + self.r * self.c
