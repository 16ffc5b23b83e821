"""Linear models: a convex loss of scores that are linear in the features, plus a ridge.

    f(w) = (1/n) sum_j l(x_j^T w; t_j) + (l2/2) ||w||^2

(HyFDCA specification, section 1.1; FedDCD specification, section 1.6 for several outputs). There is no
intercept; a constant feature serves as one, and is then regularised like the others.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike

from common.arrays import Dense, Indices, Matrix, Vector
from common.data.shard import Shard
from common.objectives.losses import ScoreLoss, Targets
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.objectives.spectrum import largest_eigenvalue


class LinearObjective(Objective):
    """A loss of linear scores on one shard; the same code for dense features and sparse rows.

    With K > 1 outputs the model is the matrix of shape (K, m), flattened class by class.

    Parameters
    ----------
    score_loss
        The loss of a sample as a function of its scores.
    shard
        The samples; may be empty.
    l2
        Weight of the ridge, at least 0.
    dtype
        Type of models, gradients and features; the features are converted if they have another.

    Attributes
    ----------
    features
        Shape (n, m), of the objective's dtype.
    targets
        What the scores should be, shape (n,).

    Raises
    ------
    SettingsError
        The loss cannot be used with this number of classes.
    DataError
        A label is not a class.
    """

    def __init__(
        self, score_loss: ScoreLoss, shard: Shard, *, l2: float, dtype: DTypeLike = np.float64
    ) -> None:
        self.outputs = score_loss.outputs(shard.classes)
        super().__init__(dimension=self.outputs * shard.features.shape[1], samples=shard.samples, dtype=dtype)
        self.score_loss = score_loss
        self.l2 = l2
        self._classes = shard.classes
        self.features, self.targets = self._prepare(shard)
        self._features_held = shard.features_held

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        return features, self.score_loss.targets(shard.labels, shard.classes, self.dtype)

    @property
    def features_held(self) -> Indices:
        """Global positions of the shard's features, shape (m,), increasing; all where they are not split."""
        if self._features_held is None:
            return np.arange(self.features.shape[1], dtype=np.int64)
        return self._features_held

    def scores(self, features: Matrix, w: Vector) -> Dense:
        """Return scores of shape (n,), or (n, K), for features of shape (n, m) and a model."""
        if self.outputs == 1:
            result: Dense = features @ w
            return result
        weights = w.reshape(self.outputs, -1)
        if _is_hollow(features):
            return np.stack([features @ of_class for of_class in weights], axis=1)
        result = features @ weights.T
        return result

    def loss(self, w: Vector) -> float:
        """Return the mean loss of the samples at ``w``, shape (d,); DataError if there are none."""
        self.require(self.samples)
        losses = self.score_loss.value(self.scores(self.features, w), self.targets)
        return float(losses.sum(dtype=np.float64)) / self.samples

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`."""
        self.require(rows.size)
        if rows is self.all_rows:  # no copy of the whole data set
            features, targets = self.features, self.targets
        else:
            features, targets = self.features[rows], self.targets[rows]
        slopes = self.score_loss.derivative(self.scores(features, w), targets)
        return self.combine(features, slopes, w)

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian at ``w`` times ``v``, both of shape (d,); where it exists, for hinges."""
        self.require(self.samples)
        direction = self.scores(self.features, v)
        curved = self.score_loss.curve(self.scores(self.features, w), self.targets, direction)
        return self.combine(self.features, curved, v)

    def combine(self, features: Matrix, slopes: Dense, w: Vector) -> Vector:
        """Return ``slopes^T X / n + l2 w``, shape (d,)."""
        slopes /= slopes.shape[0]
        if slopes.ndim == 2 and _is_hollow(features):
            result: Vector = np.concatenate([of_class @ features for of_class in slopes.T.copy()])
        else:
            result = (slopes.T @ features).ravel()
        if self.l2:
            result += self.l2 * w
        return result

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return how well ``w`` does on ``shard``, or on the objective's own samples."""
        features, targets = (self.features, self.targets) if shard is None else self._prepare(shard)
        scores = self.scores(features, w)
        return Metrics(
            loss_sum=float(self.score_loss.value(scores, targets).sum(dtype=np.float64)),
            correct=self.score_loss.correct(scores, targets) if self._classes else None,
            samples=targets.size,
        )

    @cached_property
    def _curvature(self) -> float:
        return largest_eigenvalue(self.features)

    @property
    def smoothness(self) -> float:
        """``l2 + s lambda_max(X^T X / n)`` with the loss's smoothness s; infinity for the hinge."""
        of_loss = self.score_loss.smoothness
        return self.l2 + of_loss * self._curvature if math.isfinite(of_loss) else math.inf

    @property
    def strong_convexity(self) -> float:
        """``l2``: no loss here is strongly convex in directions that the features do not span."""
        return self.l2


def _is_hollow(features: Matrix) -> bool:
    """Whether most columns are empty: then transposing a (K, m) matrix costs more than K thin products."""
    return isinstance(features, sp.csr_array) and features.nnz < features.shape[1]
