"""Losses of linear scores, with derivatives, constants and conjugates.

Five losses have one score (docs/specifications/hyfdca.md, section 1.4; Shalev-Shwartz and Zhang 2013 for the
conjugates). Two losses have several scores: softmax (docs/specifications/feddcd.md, section 1.6) and the one-sided
logistic loss (docs/specifications/fedpdm.md, section 1.4). All losses are vectorised over samples and preserve the
dtype of the scores. For the losses of one score ``z`` with target ``y``, the margin is ``m = y z`` and the scaled dual
variable is ``b = y alpha``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from fenchel.common.arrays import Dense, Vector
from fenchel.common.errors import DataError, SettingsError

Targets = NDArray[Any]
"""Targets of samples, shape (n,): -1.0 and +1.0, real numbers, or class indices."""


class ScoreLoss(ABC):
    """Loss of a linear model as a function of the scores, shape (n,), or (n, outputs) for several scores per sample."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Upper bound on the Hessian's eigenvalues with respect to the scores, infinity for a loss with a corner."""

    @abstractmethod
    def outputs(self, classes: int) -> int:
        """Return the number of scores per sample."""

    @abstractmethod
    def targets(self, labels: NDArray[np.generic], classes: int, dtype: DTypeLike) -> Targets:
        """Return targets for a shard's labels, or raise a SettingsError if the loss does not support the labels."""

    @abstractmethod
    def value(self, scores: Dense, targets: Targets) -> Vector:
        """Return each sample's loss, shape (n,)."""

    @abstractmethod
    def derivative(self, scores: Dense, targets: Targets) -> Dense:
        """Return the derivative of each sample's loss with respect to its scores, in the shape of the scores.

        At a corner, it is the derivative from the side of larger margins.
        """

    @abstractmethod
    def curve(self, scores: Dense, targets: Targets, direction: Dense) -> Dense:
        """Return the Hessian of each sample's loss times a direction, both in the shape of the scores."""

    @abstractmethod
    def correct(self, scores: Dense, targets: Targets) -> int:
        """Return the number of samples that the largest score, or the sign of a single score, classifies correctly."""

    def probabilities(self, scores: Dense) -> Dense:
        """Return the probability of each class, shape (n, classes).

        Raise ``NotImplementedError`` if the loss is not a negative log-likelihood.
        """
        raise NotImplementedError(f"the loss {self.kind} gives no probabilities, only scores")


class MarginLoss(ScoreLoss):
    """Convex loss ``l(z)`` of one score, for targets -1 and +1.

    Attributes
    ----------
    domain
        Interval of ``b = y alpha`` on which ``l*(-alpha)`` is finite.
    """

    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    @abstractmethod
    def conjugate_curvature(self) -> float | None:
        """Curvature s of ``l*(-alpha) = -alpha y + s alpha^2 / 2`` in the domain, ``None`` for any other conjugate."""

    @abstractmethod
    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``l''(z)``, shape (n,). At a corner of the derivative, it is a one-sided value."""

    def conjugate(self, alpha: Vector, targets: Targets) -> Vector:
        """Return ``l*(-alpha) = sup_z [-alpha z - l(z)]``, shape (n,), infinity outside the domain.

        The dual problem uses the conjugate with this minus sign (docs/specifications/hyfdca.md, section 1.2).
        """
        assert self.conjugate_curvature is not None
        b, (low, high) = targets * alpha, self.domain
        return np.where((b >= low) & (b <= high), self.conjugate_curvature * alpha**2 / 2 - b, np.inf)

    def outputs(self, classes: int) -> int:
        """Return 1, because the sign of one score separates two classes."""
        return 1

    def targets(self, labels: NDArray[np.generic], classes: int, dtype: DTypeLike) -> Targets:
        """Return -1 for class 0 and +1 for class 1, shape (n,), or raise a SettingsError for other than two classes."""
        if classes != 2:
            problem, remedy = (f"{classes} classes", "softmax") if classes else ("real numbers as labels", "squared")
            raise SettingsError(
                f"{self.kind} needs two classes, but the data set has {problem}; use {remedy}", key="objective.kind"
            )
        return signs(labels, dtype)

    def curve(self, scores: Vector, targets: Targets, direction: Vector) -> Vector:
        """Return the product of ``l''(z)`` and ``direction``, shape (n,)."""
        return self.second_derivative(scores, targets) * direction

    def correct(self, scores: Vector, targets: Targets) -> int:
        """Return the number of scores with the sign of their target; 0 counts as negative."""
        return int(np.count_nonzero((scores > 0) == (targets > 0)))


def signs(labels: NDArray[np.generic], dtype: DTypeLike) -> Vector:
    """Return -1 for label 0 and +1 for label 1, shape (n,), or raise a DataError for any other label."""
    positive = labels == 1
    if not np.all(positive | (labels == 0)):
        raise DataError("the labels of a data set with two classes are not 0 and 1; encode them so")
    return np.where(positive, 1.0, -1.0).astype(dtype)


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """Hinge loss ``max(0, 1 - m)`` of support vector machines.

    Attributes
    ----------
    smoothness
        Infinity, because of the corner at m = 1.
    """

    kind: ClassVar[str] = "hinge"
    smoothness = math.inf
    conjugate_curvature = 0.0

    def value(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``max(0, 1 - m)``."""
        return np.maximum(1 - targets * scores, 0)

    def derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``-y`` for m < 1, else 0."""
        return -targets * (targets * scores < 1)

    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return 0."""
        return np.zeros_like(scores)


@dataclass(frozen=True)
class SmoothedHinge(MarginLoss):
    """Smoothed hinge loss, whose corner is replaced by ``(1 - m)^2 / (2 s)`` for m in [1 - s, 1].

    Attributes
    ----------
    smoothing
        Width s > 0 of the smoothed interval.
    """

    smoothing: float = 1.0
    kind: ClassVar[str] = "smoothed-hinge"

    @property
    def smoothness(self) -> float:
        """Smoothness ``1/s``."""
        return 1 / self.smoothing

    @property
    def conjugate_curvature(self) -> float:
        """Curvature ``s`` of the conjugate."""
        return self.smoothing

    def value(self, scores: Vector, targets: Targets) -> Vector:
        """Return 0 for m > 1, ``(1 - m)^2 / (2 s)`` for m in [1 - s, 1], else ``1 - m - s/2``."""
        shortfall = 1 - targets * scores
        rounded = np.clip(shortfall, 0, self.smoothing)
        return rounded**2 / (2 * self.smoothing) + np.maximum(shortfall - self.smoothing, 0)

    def derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``-y clip((1 - m)/s, 0, 1)``."""
        return -targets * np.clip((1 - targets * scores) / self.smoothing, 0, 1)

    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``1/s`` for m in (1 - s, 1), else 0."""
        shortfall = 1 - targets * scores
        return ((shortfall > 0) & (shortfall < self.smoothing)).astype(scores.dtype) / self.smoothing


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """Squared hinge loss ``max(0, 1 - m)^2 / 2``."""

    kind: ClassVar[str] = "squared-hinge"
    domain: ClassVar[tuple[float, float]] = (0.0, math.inf)
    conjugate_curvature = 1.0
    smoothness = 1.0

    def value(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``max(0, 1 - m)^2 / 2``."""
        return np.maximum(1 - targets * scores, 0) ** 2 / 2

    def derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``-y max(0, 1 - m)``."""
        return -targets * np.maximum(1 - targets * scores, 0)

    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return 1 for m < 1, else 0."""
        return (targets * scores < 1).astype(scores.dtype)


@dataclass(frozen=True)
class Logistic(MarginLoss):
    """Logistic loss ``ln(1 + exp(-m))``."""

    kind: ClassVar[str] = "logistic"
    conjugate_curvature = None
    smoothness = 0.25

    def value(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``ln(1 + exp(-m))``, without overflow for any margin."""
        return np.logaddexp(0, -targets * scores)

    def derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``-y / (1 + exp(m))``."""
        negative = -targets
        return negative * scipy.special.expit(negative * scores)

    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``p (1 - p)`` with ``p = 1 / (1 + exp(-z))``."""
        return scipy.special.expit(scores) * scipy.special.expit(-scores)

    def conjugate(self, alpha: Vector, targets: Targets) -> Vector:
        """Return ``b ln b + (1 - b) ln(1 - b)`` for b in [0, 1], with 0 ln 0 = 0."""
        b = targets * alpha
        # scipy.special.entr(x) is -x ln x, 0 at 0 and -infinity below.
        return -(scipy.special.entr(b) + scipy.special.entr(1 - b))

    def probabilities(self, scores: Vector) -> Dense:
        """Return ``1 / (1 + exp(z))`` and ``1 / (1 + exp(-z))``, shape (n, 2)."""
        return np.stack([scipy.special.expit(-scores), scipy.special.expit(scores)], axis=1)


@dataclass(frozen=True)
class Squared(MarginLoss):
    """Squared loss ``(z - y)^2 / 2``, for real targets, or for two classes as -1 and +1."""

    kind: ClassVar[str] = "squared"
    domain: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    conjugate_curvature = 1.0
    smoothness = 1.0

    def targets(self, labels: NDArray[np.generic], classes: int, dtype: DTypeLike) -> Targets:
        """Return real labels unchanged, and two classes as -1 and +1, shape (n,)."""
        if classes > 2:
            raise SettingsError(
                f"squared needs numbers or two classes as labels, but the data set has {classes} classes; set "
                "data.task to regression if the labels are numbers, or use softmax",
                key="objective.kind",
            )
        return super().targets(labels, classes, dtype) if classes else labels.astype(dtype)

    def value(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``(z - y)^2 / 2``."""
        return (scores - targets) ** 2 / 2

    def derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return ``z - y``."""
        return scores - targets

    def second_derivative(self, scores: Vector, targets: Targets) -> Vector:
        """Return 1."""
        return np.ones_like(scores)


class _ClassLoss(ScoreLoss):
    """Base class of losses with one score for each class."""

    def outputs(self, classes: int) -> int:
        """Return the number of classes."""
        return classes

    def targets(self, labels: NDArray[np.generic], classes: int, dtype: DTypeLike) -> Targets:
        """Return the class indices, int64, shape (n,)."""
        return class_indices(labels, classes, self.kind)

    def correct(self, scores: Dense, targets: Targets) -> int:
        """Return the number of samples whose class has the largest score; among equal scores, the first class wins."""
        return int(np.count_nonzero(scores.argmax(axis=1) == targets))


@dataclass(frozen=True)
class Softmax(_ClassLoss):
    """Cross-entropy ``-ln softmax(z)_t`` with one score for each class (docs/specifications/feddcd.md, section 1.6).

    Attributes
    ----------
    smoothness
        Upper bound on the eigenvalues of the Hessian ``diag(p) - p p^T``.
    """

    kind: ClassVar[str] = "softmax"
    smoothness = 0.5

    def value(self, scores: Dense, targets: Targets) -> Vector:
        """Return ``ln sum_k exp(z_k) - z_t``, shape (n,), without overflow."""
        shifted = scores - scores.max(axis=1, keepdims=True)
        return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(targets.size), targets]

    def derivative(self, scores: Dense, targets: Targets) -> Dense:
        """Return ``p - e_t`` with ``p = softmax(z)``, shape (n, classes)."""
        result = self.probabilities(scores)
        result[np.arange(targets.size), targets] -= 1
        return result

    def curve(self, scores: Dense, targets: Targets, direction: Dense) -> Dense:
        """Return ``(diag(p) - p p^T) u`` for each sample, shape (n, classes)."""
        p = self.probabilities(scores)
        weighted = p * direction
        return weighted - p * weighted.sum(axis=1, keepdims=True)

    def probabilities(self, scores: Dense) -> Dense:
        """Return ``softmax(z)``, shape (n, classes), without overflow."""
        p: Dense = scores - scores.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        return p


@dataclass(frozen=True)
class OneSidedLogistic(_ClassLoss):
    """One-sided logistic loss ``ln(1 + exp(-z_t))``, which depends only on the score of the true class.

    FedPDM uses this loss (docs/specifications/fedpdm.md, section 1.4). Minimisation raises the score of the true class
    and ignores all other scores. Unlike for :class:`Logistic`, two classes have two scores.
    """

    kind: ClassVar[str] = "one-sided-logistic"
    smoothness = 0.25

    def value(self, scores: Dense, targets: Targets) -> Vector:
        """Return ``ln(1 + exp(-z_t))``, shape (n,), without overflow."""
        return np.logaddexp(0, -scores[np.arange(targets.size), targets])

    def derivative(self, scores: Dense, targets: Targets) -> Dense:
        """Return ``-1 / (1 + exp(z_t))`` for the true class, and 0 for the other classes, shape (n, classes)."""
        true = np.arange(targets.size), targets
        result: Dense = np.zeros_like(scores)
        result[true] = -scipy.special.expit(-scores[true])
        return result

    def curve(self, scores: Dense, targets: Targets, direction: Dense) -> Dense:
        """Return ``p (1 - p) u_t`` with ``p = 1 / (1 + exp(-z_t))`` for the true class, and 0 for the other classes."""
        true = np.arange(targets.size), targets
        result: Dense = np.zeros_like(scores)
        result[true] = scipy.special.expit(scores[true]) * scipy.special.expit(-scores[true]) * direction[true]
        return result


def require_classes(classes: int, kind: str) -> None:
    """Raise a ``SettingsError`` unless the data set is for classification."""
    if classes < 2:
        raise SettingsError(
            f"{kind} needs classes, but the labels of this data set are real numbers; use squared", key="objective.kind"
        )


def class_indices(labels: NDArray[np.generic], classes: int, kind: str) -> Targets:
    """Return labels as int64 class indices, shape (n,).

    Raise a ``SettingsError`` for regression, or a ``DataError`` for labels that are not class indices.
    """
    require_classes(classes, kind)
    indices = labels.astype(np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= classes):
        raise DataError(f"the labels of a data set with {classes} classes are not 0 to {classes - 1}; encode them so")
    return indices
