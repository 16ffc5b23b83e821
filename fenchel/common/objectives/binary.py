"""Objective for binary classification by one score per sample, with the cross-entropy or the AUC as the goal.

A scorer maps the features of a sample to one number. For general algorithms such as FedAvg and SCAFFOLD, the objective
is the mean cross-entropy of the scores. Algorithms that maximise the area under the ROC curve (AUC), such as CODASCA,
use the min-max function of :mod:`fenchel.common.objectives.auc` with the same weights. So both kinds of algorithms
train the same scorer, and can follow one another (docs/specifications/codasca.md, sections 1.2 and 2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
import scipy
from numpy.typing import DTypeLike

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.data.imbalance import positive_classes
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.auc import AUXILIARY, Positive, min_max
from fenchel.common.objectives.losses import Logistic, class_indices, require_classes
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking

PullBack: TypeAlias = Callable[[Vector], Vector]
"""Vector-Jacobian product: maps derivatives with respect to scores, shape (n,), to a gradient, shape (d,)."""

Output: TypeAlias = Literal["none", "sigmoid", "l2"]


class Scorer(Protocol):
    """Differentiable function of a flat weight vector and the features of samples, with one score per sample."""

    @property
    def dimension(self) -> int:
        """Number d of weights."""

    @property
    def head(self) -> int:
        """Number of trailing weights that form the last layer, 0 without layers."""

    def initial(self, seed: int) -> Vector:
        """Return the initial weights of a run, shape (d,)."""

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return the scores, shape (n,), of features of shape (n, m)."""

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return the scores, shape (n,), and their vector-Jacobian product.

        The product is a function that maps derivatives with respect to the scores, shape (n,), to the gradient with
        respect to ``w``, shape (d,).
        """


class LinearScorer:
    """Linear scorer ``h(w; x) = w^T x`` without an intercept.

    With the correct prior, an intercept would not change the AUC objective (docs/specifications/codasca.md, section
    1.4).
    """

    head = 0

    def __init__(self, features: int, dtype: DTypeLike) -> None:
        self.dimension = features
        self._dtype = np.dtype(dtype)

    def initial(self, seed: int) -> Vector:
        """Return zeros."""
        return np.zeros(self.dimension, self._dtype)

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return the scores ``X w``, shape (n,), for dense or sparse features."""
        return features @ w

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return the scores ``X w``, and the function that maps derivatives s with respect to them to ``X^T s``."""

        def pull_back(slopes: Vector) -> Vector:
            return slopes @ features

        return self.scores(w, features), pull_back


class BinaryObjective(Objective):
    """Objective for binary classification on one shard.

    As an :class:`Objective`, its value is the mean cross-entropy ``ln(1 + exp(-y s))`` of the scorer's raw output s
    plus ``(l2/2) ||w||^2``. :meth:`saddle_gradient` provides the min-max objective for the AUC. The features have the
    shape (n, m) and the objective's dtype.

    Parameters
    ----------
    shard
        Shard of samples, possibly empty.

    Attributes
    ----------
    least_loss
        Lower bound 0 of the cross-entropy.
    output
        Map from the scorer's output s to the score h of the min-max function. ``none``: h = s; ``sigmoid``: h = 1 / (1
        + exp(-s)); ``l2``: h = s / ||s||, with the norm over the batch.
    positive_classes
        Numbers of the classes that count as positive.
    positive
        Booleans, shape (n,), true for positive samples.
    l2
        Weight of the ridge, at least 0.
    """

    least_loss = 0.0
    ranks = True

    def __init__(
        self,
        scorer: Scorer,
        shard: Shard,
        *,
        output: Output = "none",
        positive: Sequence[int] | None = None,
        l2: float = 0.0,
        dtype: DTypeLike = np.float64,
    ) -> None:
        super().__init__(dimension=scorer.dimension, samples=shard.samples, dtype=dtype)
        self.scorer = scorer
        self.output = output
        self.l2 = l2
        self._classes = shard.classes
        self.positive_classes = _positive_classes(shard.classes, positive)
        self.features, self.positive = self._prepare(shard)
        self._loss = Logistic()

    def _prepare(self, shard: Shard) -> tuple[Matrix, Positive]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        labels = class_indices(shard.labels, self._classes, "binary")
        return features, np.isin(labels, self.positive_classes)

    @property
    def positives(self) -> int:
        """Number n_+ of positive samples."""
        return int(np.count_nonzero(self.positive))

    @property
    def head(self) -> int:
        """Number of trailing weights that form the scorer's last layer."""
        return self.scorer.head

    def initial(self, seed: int) -> Vector:
        """Return the initial weights of the scorer, shape (d,)."""
        return self.scorer.initial(seed)

    # Scores

    def scores(self, w: Vector, rows: Indices) -> tuple[Vector, Positive]:
        """Return the scores h of a batch of samples after the output map, and indicators of the positive samples.

        Parameters
        ----------
        w
            Weights of the scorer, shape (d,).
        rows
            Positions of the samples, shape (n,).

        Returns
        -------
        tuple[Vector, Positive]
            Scores of the objective's dtype, shape (n,), and booleans, shape (n,).
        """
        features, positive = self._take(rows)
        return self._activated(self.scorer.scores(w, features))[0], positive

    def _activated(self, raw: Vector) -> tuple[Vector, PullBack]:
        """Return the scores h for the raw output s, and the function from dF/dh to dF/ds, each of shape (n,)."""
        if self.output == "none":
            return raw, lambda slopes: slopes
        if self.output == "sigmoid":
            h: Vector = scipy.special.expit(raw)
            return h, lambda slopes: slopes * h * (1 - h)
        norm = float(np.linalg.norm(raw))
        if norm == 0:  # a zero vector has no direction, so the batch contributes no gradient
            return raw, np.zeros_like
        unit: Vector = raw / raw.dtype.type(norm)
        return unit, lambda slopes: ((slopes - unit * (unit @ slopes)) / norm).astype(raw.dtype)

    def decision_function(self, w: Vector, features: Matrix) -> Vector:
        """Return the scorer's raw output for prepared features, shape (n,), above 0 for predicted positive samples."""
        return self.scorer.scores(w, features.astype(self.dtype, copy=False))

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the probabilities of the negative and the positive class in the logistic model, shape (n, 2)."""
        return self._loss.probabilities(self.decision_function(w, features))

    # The min-max function

    def saddle_gradient(self, point: Vector, rows: Indices, prior: float) -> tuple[float, Vector]:
        """Return the mean of F over some samples, and the saddle-point operator G for descent-ascent steps.

        Parameters
        ----------
        point
            Point u = (w, a, b, alpha), shape (d + 3,).
        rows
            Positions of the samples, shape (n,), possibly repeated.

        Returns
        -------
        tuple[float, Vector]
            Mean of F without the ridge, and the operator G = (grad_w F, dF/da, dF/db, -dF/dalpha), shape (d + 3,),
            where grad_w includes the ridge. So ``u - eta G`` descends in (w, a, b) and ascends in alpha.
        """
        self.require(rows.size)
        w, auxiliary = point[:-AUXILIARY], point[-AUXILIARY:].astype(np.float64)
        features, positive = self._take(rows)
        raw, pull_back = self.scorer.differentiated(w, features)
        h, through_output = self._activated(raw)
        f = min_max(prior, h, positive, auxiliary)
        slopes = (f.slopes / rows.size).astype(self.dtype, copy=False)
        g = np.empty_like(point)
        g[:-AUXILIARY] = pull_back(through_output(slopes))
        if self.l2:
            g[:-AUXILIARY] += self.l2 * w
        g[-AUXILIARY:] = f.gradient * (1, 1, -1)
        return float(np.mean(f.value, dtype=np.float64)), g

    def _take(self, rows: Indices) -> tuple[Matrix, Positive]:
        if rows is self.all_rows:  # avoid a copy of the whole data set
            return self.features, self.positive
        return self.features[rows], self.positive[rows]

    # Cross-entropy

    def loss(self, w: Vector) -> float:
        """Return the mean cross-entropy of all samples at ``w``, shape (d,), or raise a DataError without samples."""
        return self.batch_loss(w, self.all_rows)

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean cross-entropy of some samples at ``w``, shape (d,), or raise a DataError without samples."""
        self.require(rows.size)
        features, positive = self._take(rows)
        losses = self._loss.value(self.scorer.scores(w, features), _signs(positive, self.dtype))
        return float(losses.sum(dtype=np.float64)) / rows.size

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of the mean cross-entropy of some samples plus the gradient of the ridge, shape (d,)."""
        self.require(rows.size)
        features, positive = self._take(rows)
        raw, pull_back = self.scorer.differentiated(w, features)
        result = pull_back(self._loss.derivative(raw, _signs(positive, self.dtype)) / rows.size)
        if self.l2:
            result += self.l2 * w
        return result

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return cross-entropy and number of correct predictions on ``shard``, or on the objective's own samples.

        The loss is the cross-entropy even for algorithms that maximise the AUC, because the cross-entropy is additive
        over clients. The predicted class is positive if the scorer's raw output is above 0.
        """
        return self.judge(w, shard)[0]

    def judge(self, w: Vector, shard: Shard | None = None) -> tuple[Metrics, Ranking]:
        """Return the result of :meth:`evaluate`, and a ranking of the samples by the scorer's raw output.

        The ranking does not use the scores h. A sigmoid preserves the order only until high scores round to 1, and
        ``l2`` scales each batch differently.
        """
        features, positive = (self.features, self.positive) if shard is None else self._prepare(shard)
        raw, targets = self.scorer.scores(w, features), _signs(positive, self.dtype)
        metrics = Metrics(
            loss_sum=float(self._loss.value(raw, targets).sum(dtype=np.float64)),
            correct=self._loss.correct(raw, targets),
            samples=positive.size,
        )
        return metrics, Ranking(raw, positive)


def _signs(positive: Positive, dtype: DTypeLike) -> Vector:
    return np.where(positive, 1.0, -1.0).astype(dtype)


def _positive_classes(classes: int, chosen: Sequence[int] | None) -> tuple[int, ...]:
    require_classes(classes, "binary")
    found = positive_classes(classes, chosen, "")
    if found is None:
        raise SettingsError(
            f"binary separates two classes, but the data set has {classes}; list those of the classes 0 to "
            f"{classes - 1} that are positive in objective.positive",
            key="objective.kind",
        )
    return found


def require_scores(objective: Objective, algorithm: str) -> None:
    """Raise a ``SettingsError`` unless an objective separates two classes by scores."""
    if not isinstance(objective, BinaryObjective):
        raise SettingsError(
            f"{algorithm} maximises the area under the ROC curve, which needs one score a sample; use "
            "objective.kind: binary",
            key="objective.kind",
        )
