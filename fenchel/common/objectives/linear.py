"""Linear models: a convex loss of scores that are linear in the features, plus a ridge.

    f(w) = (1/n) sum_j l(x_j^T w; t_j) + (l2/2) ||w||^2 + beta sum_k w_k^2 / (1 + w_k^2)

The objective is that of docs/specifications/hyfdca.md, section 1.1. Several outputs are those of
docs/specifications/feddcd.md, section 1.6. The last term is non-convex (docs/specifications/fedpdm.md, section 1.4).
There is no intercept. A constant feature can replace the intercept, and is then regularised like every feature.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Dense, Indices, Matrix, Vector, is_sparse
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.losses import ScoreLoss, Targets
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.spectrum import largest_eigenvalue


class LinearObjective(Objective):
    """Loss of linear scores on one shard with dense or sparse features.

    With K > 1 outputs, the model is a matrix of shape (K, m), flattened class by class.

    Parameters
    ----------
    shard
        Shard of samples, possibly empty. Features are converted to the objective's dtype.

    Attributes
    ----------
    least_loss
        Lower bound 0 of the losses.
    score_loss
        Loss of a sample as a function of the sample's scores.
    l2
        Weight of the ridge, at least 0.
    nonconvex
        Weight beta >= 0 of the term ``sum_k w_k^2 / (1 + w_k^2)``.
    """

    least_loss = 0.0

    def __init__(
        self, score_loss: ScoreLoss, shard: Shard, *, l2: float, nonconvex: float = 0.0, dtype: DTypeLike = np.float64
    ) -> None:
        self.outputs = score_loss.outputs(shard.classes)
        super().__init__(dimension=self.outputs * shard.features.shape[1], samples=shard.samples, dtype=dtype)
        self.score_loss = score_loss
        self.l2, self.nonconvex = l2, nonconvex
        self._classes = shard.classes
        self.features, self.targets = self._prepare(shard)
        self._features_held = shard.features_held

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        return features, self.score_loss.targets(shard.labels, shard.classes, self.dtype)

    @property
    def features_held(self) -> Indices:
        """Global positions of the shard's features, shape (m,), increasing; all positions if features are not split."""
        if self._features_held is None:
            return np.arange(self.features.shape[1], dtype=np.int64)
        return self._features_held

    def scores(self, features: Matrix, w: Vector) -> Dense:
        """Return the scores, shape (n,) or (n, K), of a model for features of shape (n, m)."""
        if self.outputs == 1:
            return features @ w
        weights = w.reshape(self.outputs, -1)
        if _is_hollow(features):
            return np.stack([features @ of_class for of_class in weights], axis=1)
        result = features @ weights.T
        return result

    def decision_function(self, w: Vector, features: Matrix) -> Dense:
        """Return the scores for prepared features; see :meth:`Objective.decision_function`."""
        return self.scores(features.astype(self.dtype, copy=False), w)

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the probability of each class; see :meth:`Objective.probabilities`."""
        return self.score_loss.probabilities(self.decision_function(w, features))

    def loss(self, w: Vector) -> float:
        """Return the mean loss of all samples at ``w``, shape (d,), or raise a DataError without samples."""
        return self.batch_loss(w, self.all_rows)

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, shape (d,), or raise a DataError without samples."""
        self.require(rows.size)
        features, targets = self._take(rows)
        losses = self.score_loss.value(self.scores(features, w), targets)
        return float(losses.sum(dtype=np.float64)) / rows.size

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2 + beta sum_k w_k^2 / (1 + w_k^2)``."""
        ridge = 0.5 * self.l2 * float(w @ w)
        if not self.nonconvex:
            return ridge
        squares = w * w
        return ridge + self.nonconvex * float((squares / (1 + squares)).sum(dtype=np.float64))

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`."""
        features, slopes = self._slopes(w, rows)
        return self.combine(features, slopes, w)

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the gradient with clipped sample gradients, shape (d,); see :meth:`Objective.clipped_gradient`.

        A sample's gradient is the outer product of its slopes and features, so its norm is the product of both norms. A
        non-finite gradient counts as zero, so that the clipping bound holds for every model.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            features, slopes = self._slopes(w, rows)
            sizes = np.abs(slopes) if slopes.ndim == 1 else np.linalg.norm(slopes, axis=1)
            norms = self.row_norms[rows] * sizes
        if not np.isfinite(norms).all():
            slopes[~np.isfinite(norms)] = 0
            norms = np.where(np.isfinite(norms), norms, 0)
        factors = np.divide(bound, norms, out=np.ones_like(norms), where=norms > bound).astype(self.dtype)
        slopes *= factors if slopes.ndim == 1 else factors[:, None]
        return self.combine(features, slopes, w)

    def _slopes(self, w: Vector, rows: Indices) -> tuple[Matrix, Dense]:
        """Return features of some samples, and the derivatives of the samples' losses with respect to the scores."""
        self.require(rows.size)
        features, targets = self._take(rows)
        return features, self.score_loss.derivative(self.scores(features, w), targets)

    def _take(self, rows: Indices) -> tuple[Matrix, Targets]:
        if rows is self.all_rows:  # avoid a copy of the whole data set
            return self.features, self.targets
        return self.features[rows], self.targets[rows]

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian at ``w`` times ``v``, all of shape (d,), with one-sided values at corners of hinges."""
        self.require(self.samples)
        return self.curved(self.scores(self.features, w), w, v)

    def curved(self, scores: Dense, w: Vector, v: Vector) -> Vector:
        """Return :meth:`hessian_vector` for known scores of all samples at ``w``."""
        curves = self.score_loss.curve(scores, self.targets, self.scores(self.features, v))
        result = _mean_outer(self.features, curves)
        if self.l2:
            result += self.l2 * v
        if self.nonconvex:
            squares = w * w
            result += (2 * self.nonconvex) * (1 - 3 * squares) / (1 + squares) ** 3 * v
        return result

    def combine(self, features: Matrix, slopes: Dense, w: Vector) -> Vector:
        """Return ``slopes^T X / n`` plus the gradient of the penalty at ``w``, shape (d,), and overwrite ``slopes``."""
        result = _mean_outer(features, slopes)
        if self.l2:
            result += self.l2 * w
        if self.nonconvex:
            result += (2 * self.nonconvex) * w / (1 + w * w) ** 2
        return result

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return the metrics of ``w``, shape (d,), on ``shard`` or on the objective's own samples."""
        return self.judge(w, shard)[0]

    @property
    def ranks(self) -> bool:
        """True if the data have two classes."""
        return self._classes == 2

    def judge(self, w: Vector, shard: Shard | None = None) -> tuple[Metrics, Ranking | None]:
        """Return the result of :meth:`evaluate`, and for two classes a ranking by the score of the second class.

        With two outputs, the ranking uses the difference of the two scores.
        """
        features, targets = (self.features, self.targets) if shard is None else self._prepare(shard)
        scores = self.scores(features, w)
        metrics = Metrics(
            loss_sum=float(self.score_loss.value(scores, targets).sum(dtype=np.float64)),
            correct=self.score_loss.correct(scores, targets) if self._classes else None,
            samples=targets.size,
        )
        if not self.ranks:
            return metrics, None
        return metrics, Ranking(scores if scores.ndim == 1 else scores[:, 1] - scores[:, 0], targets > 0)

    @cached_property
    def _curvature(self) -> float:
        return largest_eigenvalue(self.features)

    @property
    def smoothness(self) -> float:
        """Smoothness ``l2 + 2 beta + s lambda_max(X^T X / n)`` for a loss of smoothness s, infinity for the hinge."""
        of_loss, steepest_penalty = self.score_loss.smoothness, self.l2 + 2 * self.nonconvex
        return steepest_penalty + of_loss * self._curvature if math.isfinite(of_loss) else math.inf

    @property
    def strong_convexity(self) -> float:
        """Strong convexity ``l2 - beta/2``, as no loss is strongly convex in directions outside the features' span.

        A negative value bounds the non-convexity of the objective (weak convexity).
        """
        return self.l2 - self.nonconvex / 2

    @cached_property
    def row_norms(self) -> Vector:
        """Euclidean norm of each sample's features, shape (n,), float64."""
        entries = self.features.data if is_sparse(self.features) else self.features
        squares = np.square(entries, dtype=np.float64)
        if is_sparse(self.features):
            samples = np.repeat(np.arange(self.samples), np.diff(self.features.indptr))
            return np.sqrt(np.bincount(samples, weights=squares, minlength=self.samples))
        return np.sqrt(squares.sum(axis=1))


def require_one_score(objective: Objective, algorithm: str) -> None:
    """Raise a ``SettingsError`` unless an objective is a linear model with one score per sample."""
    if not isinstance(objective, LinearObjective) or objective.outputs != 1:
        raise SettingsError(
            f"{algorithm} splits a model by features, which needs a linear model with one score a sample; use "
            "squared, logistic, hinge, smoothed-hinge or squared-hinge",
            key="objective.kind",
        )


def _mean_outer(features: Matrix, slopes: Dense) -> Vector:
    """Return ``slopes^T X / n``, shape (d,), and overwrite ``slopes``."""
    slopes /= slopes.shape[0]
    if slopes.ndim == 2 and _is_hollow(features):
        result: Vector = np.concatenate([of_class @ features for of_class in slopes.T.copy()])
    else:
        result = (slopes.T @ features).ravel()
    return result


def _is_hollow(features: Matrix) -> bool:
    """Return whether most columns are empty, so that the transposition of a (K, m) matrix dominates the cost."""
    return is_sparse(features) and features.nnz < features.shape[1]
