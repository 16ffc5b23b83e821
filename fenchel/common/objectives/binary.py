"""One score for each sample, for telling two classes apart: by cross-entropy, or by the area under the ROC curve.

A scorer maps the features of a sample to one number. For algorithms that know nothing but objectives (FedAvg,
SCAFFOLD) the objective is the mean cross-entropy of the scores; the algorithms for the area (CODASCA and its
relatives) ask for the min-max function of :mod:`fenchel.common.objectives.auc` instead, in the same weights.
So both kinds train the very same scorer, one after the other if that is wanted (docs/specifications/codasca.md,
sections 1.2 and 2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike
from scipy.special import expit

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.data.imbalance import positive_classes
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.auc import AUXILIARY, MinMax, Positive
from fenchel.common.objectives.losses import Logistic, class_indices, require_classes
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking

PullBack: TypeAlias = Callable[[Vector], Vector]
"""Maps slopes, shape (n,), to the sum over samples of a sample's slope times the gradient of its score, shape (d,)."""

Output: TypeAlias = Literal["none", "sigmoid", "l2"]


class Scorer(Protocol):
    """A function of a flat vector of weights and a sample's features, with its derivative."""

    @property
    def dimension(self) -> int:
        """Number d of weights."""

    @property
    def head(self) -> int:
        """Number of the last weights that belong to the last layer, 0 without layers."""

    def initial(self, seed: int) -> Vector:
        """Return the weights that a run starts from, shape (d,)."""

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return the scores, shape (n,), of features of shape (n, m)."""

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return the scores and what turns slopes in them into a gradient in ``w``."""


class LinearScorer:
    """``h(w; x) = w^T x``, without an intercept: with the right prior it would change nothing (section 1.4)."""

    head = 0

    def __init__(self, features: int, dtype: DTypeLike) -> None:
        self.dimension = features
        self._dtype = np.dtype(dtype)

    def initial(self, seed: int) -> Vector:
        """Return zeros."""
        return np.zeros(self.dimension, self._dtype)

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return ``X w``, shape (n,), for dense or sparse features."""
        return features @ w

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return ``X w``, and ``X^T s`` as a function of s."""

        def pull_back(slopes: Vector) -> Vector:
            return slopes @ features

        return self.scores(w, features), pull_back


class BinaryObjective(Objective):
    """Scores of one shard.

    As an :class:`Objective`: the mean cross-entropy of the scorer's own output, ``ln(1 + exp(-y s))``, plus
    ``(l2/2) ||w||^2``. :meth:`saddle_gradient` is the other objective.

    features: shape (n, m), of the objective's dtype.

    Attributes
    ----------
    least_loss
        Lower bound 0 of the cross-entropy.
    shard
        Samples, possibly none.
    output
        Map from the scorer's output s to the score h of the min-max function. ``none``: h = s; ``sigmoid``: h = 1 / (1
        + exp(-s)); ``l2``: h = s / ||s||, with the norm over the batch.
    positive
        True for positive samples, shape (n,).
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
        self._positive_classes = _positive_classes(shard.classes, positive)
        self.features, self.positive = self._prepare(shard)
        self._loss = Logistic()

    def _prepare(self, shard: Shard) -> tuple[Matrix, Positive]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        labels = class_indices(shard.labels, self._classes, "binary")
        return features, np.isin(labels, self._positive_classes)

    @property
    def positive_classes(self) -> tuple[int, ...]:
        """The classes that count as positive, by number."""
        return self._positive_classes

    @property
    def positives(self) -> int:
        """Number of positive samples, n_+."""
        return int(np.count_nonzero(self.positive))

    @property
    def head(self) -> int:
        """Number of the last weights that belong to the scorer's last layer."""
        return self.scorer.head

    def initial(self, seed: int) -> Vector:
        """Return the weights that the scorer starts from, shape (d,)."""
        return self.scorer.initial(seed)

    # Scores

    def scores(self, w: Vector, shard: Shard | None = None) -> tuple[Vector, Positive]:
        """Return the scores h of samples, after the output, and which are positive: what a ROC curve is made of.

        Parameters
        ----------
        w
            Shape (d,).
        shard
            The samples; ``None``: the objective's own.

        Returns
        -------
        tuple[Vector, Positive]
            Scores of the objective's dtype, shape (n,), and booleans, shape (n,). With the output ``l2`` the samples of
            the shard are one batch.
        """
        features, positive = (self.features, self.positive) if shard is None else self._prepare(shard)
        return self._activated(self.scorer.scores(w, features))[0], positive

    def scores_of(self, w: Vector, rows: Indices) -> tuple[Vector, Positive]:
        """Return :meth:`scores` of some of the objective's own samples, which are one batch."""
        features, positive = self._take(rows)
        return self._activated(self.scorer.scores(w, features))[0], positive

    def _activated(self, raw: Vector) -> tuple[Vector, PullBack]:
        """Return h of the scorer's output s, and what turns dF/dh into dF/ds."""
        if self.output == "none":
            return raw, lambda slopes: slopes
        if self.output == "sigmoid":
            h: Vector = expit(raw)
            return h, lambda slopes: slopes * h * (1 - h)
        norm = float(np.linalg.norm(raw))
        if norm == 0:  # a zero vector has no direction, so the batch contributes no gradient
            return raw, np.zeros_like
        unit: Vector = raw / raw.dtype.type(norm)
        return unit, lambda slopes: ((slopes - unit * (unit @ slopes)) / norm).astype(raw.dtype)

    def decision_function(self, w: Vector, features: Matrix) -> Vector:
        """Return the scorer's own output, shape (n,), for prepared features; above 0 for positive samples."""
        return self.scorer.scores(w, features.astype(self.dtype, copy=False))

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the probability of either class by the cross-entropy, shape (n, 2): negative, positive."""
        return self._loss.probabilities(self.decision_function(w, features))

    # The min-max function

    def saddle_gradient(self, point: Vector, rows: Indices, prior: float) -> tuple[float, Vector]:
        """Return the mean of F over some samples, and the direction that leads away from its saddle.

        Parameters
        ----------
        point
            u = (w, a, b, alpha), shape (d + 3,).
        rows
            Positions of the samples, shape (n,); one may occur more than once.

        Returns
        -------
        tuple[float, Vector]
            The mean of F, without the ridge, and G = (grad_w F, dF/da, dF/db, -dF/dalpha), shape (d + 3,): the ridge is
            in grad_w, and the sign of the last is such that ``u - eta G`` descends in (w, a, b) and ascends in alpha.
        """
        self.require(rows.size)
        w, auxiliary = point[:-AUXILIARY], point[-AUXILIARY:].astype(np.float64)
        features, positive = self._take(rows)
        raw, pull_back = self.scorer.differentiated(w, features)
        h, through_output = self._activated(raw)
        f = MinMax(prior)
        slopes = (f.slopes(h, positive, auxiliary) / rows.size).astype(self.dtype, copy=False)
        g = np.empty_like(point)
        g[:-AUXILIARY] = pull_back(through_output(slopes))
        if self.l2:
            g[:-AUXILIARY] += self.l2 * w
        g[-AUXILIARY:] = f.gradient(h, positive, auxiliary) * (1, 1, -1)
        return float(np.mean(f.value(h, positive, auxiliary), dtype=np.float64)), g

    def _take(self, rows: Indices) -> tuple[Matrix, Positive]:
        if rows is self.all_rows:  # avoid a copy of the whole data set
            return self.features, self.positive
        return self.features[rows], self.positive[rows]

    # Cross-entropy

    def loss(self, w: Vector) -> float:
        """Return the mean cross-entropy of the samples at ``w``, shape (d,); DataError if there are none."""
        return self.batch_loss(w, self.all_rows)

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean cross-entropy of some samples at ``w``, shape (d,); DataError if there are none."""
        self.require(rows.size)
        features, positive = self._take(rows)
        losses = self._loss.value(self.scorer.scores(w, features), _signs(positive, self.dtype))
        return float(losses.sum(dtype=np.float64)) / rows.size

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of the mean cross-entropy of some samples, plus that of the ridge, shape (d,)."""
        self.require(rows.size)
        features, positive = self._take(rows)
        raw, pull_back = self.scorer.differentiated(w, features)
        result = pull_back(self._loss.derivative(raw, _signs(positive, self.dtype)) / rows.size)
        if self.l2:
            result += self.l2 * w
        return result

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return cross-entropy and right answers of ``w`` on ``shard``, or on the objective's own samples.

        The cross-entropy is the yardstick whatever was minimised, since it adds up over clients; a sample
        counts as positive if the scorer's own output is above 0.
        """
        return self.judge(w, shard)[0]

    def judge(self, w: Vector, shard: Shard | None = None) -> tuple[Metrics, Ranking]:
        """Return :meth:`evaluate`, and the samples with the scorer's own output as their scores.

        Not with h: a sigmoid has the same order, until it rounds high scores to 1, and ``l2`` has another
        scale in each batch.
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
            f"binary tells two classes apart, but this data set has {classes}; say in "
            f"objective.positive which of the classes 0 to {classes - 1} count as positive",
            key="objective.kind",
        )
    return found


def require_scores(objective: Objective, algorithm: str) -> None:
    """Raise a ``SettingsError`` unless an objective tells two classes apart by scores."""
    if not isinstance(objective, BinaryObjective):
        raise SettingsError(
            f"{algorithm} maximises the area under the ROC curve, for which it needs scores; use binary",
            key="objective.kind",
        )
