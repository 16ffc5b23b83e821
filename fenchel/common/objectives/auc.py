"""The min-max function whose minimum over scorers maximises a surrogate of the area under the ROC curve.

    F(a, b, alpha; h, y) = (1-p) (h-a)^2 I[y=1] + p (h-b)^2 I[y=-1]
                           + 2 (1+alpha) (p h I[y=-1] - (1-p) h I[y=1]) - p (1-p) alpha^2

with the score h of a sample and its class y (docs/specifications/codasca.md, sections 1.2 to 1.5). The area is a mean
over pairs of a positive and a negative sample; F is a mean over samples, so that no pair of samples ever has to
meet. It is minimised over the scorer, a and b and maximised over alpha. If p is the share of positive
samples,

    mean over pairs of (1 - h(x) + h(x'))^2 = 1 + min_{a,b} max_alpha mean F / (p (1-p)).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.errors import DataError

Positive: TypeAlias = NDArray[np.bool_]
"""True for samples of the positive class, shape (n,)."""

AUXILIARY = 3
"""Number of the auxiliary variables a, b and alpha."""


@dataclass(frozen=True)
class MinMax:
    """F for one class prior.

    Attributes
    ----------
    prior
        p, with 0 < p < 1: one number for all clients (section 1.5).
    """

    prior: float

    def value(self, scores: Vector, positive: Positive, auxiliary: Vector) -> Vector:
        """Return F of each sample, shape (n,).

        Parameters
        ----------
        scores
            h, shape (n,).
        positive
            I[y=1], shape (n,).
        auxiliary
            (a, b, alpha), shape (3,).
        """
        p, (a, b, alpha) = self.prior, auxiliary
        of_positive = (1 - p) * ((scores - a) ** 2 - 2 * (1 + alpha) * scores)
        of_negative = p * ((scores - b) ** 2 + 2 * (1 + alpha) * scores)
        return np.where(positive, of_positive, of_negative) - p * (1 - p) * alpha**2

    def slopes(self, scores: Vector, positive: Positive, auxiliary: Vector) -> Vector:
        """Return dF/dh of each sample, shape (n,); arguments as for :meth:`value`."""
        p, (a, b, alpha) = self.prior, auxiliary
        of_positive = 2 * (1 - p) * (scores - a - 1 - alpha)
        of_negative = 2 * p * (scores - b + 1 + alpha)
        return np.where(positive, of_positive, of_negative)

    def gradient(self, scores: Vector, positive: Positive, auxiliary: Vector) -> Vector:
        """Return the gradient of the mean of F in (a, b, alpha), shape (3,), float64; nothing divides by a class."""
        p, (a, b, alpha) = self.prior, auxiliary
        n = scores.size
        above = float(np.sum(scores, where=positive, dtype=np.float64)) / n
        below = float(np.sum(scores, where=~positive, dtype=np.float64)) / n
        share = float(np.count_nonzero(positive)) / n
        return np.array(
            [
                -2 * (1 - p) * (above - float(a) * share),
                -2 * p * (below - float(b) * (1 - share)),
                2 * (p * below - (1 - p) * above) - 2 * p * (1 - p) * float(alpha),
            ]
        )


@dataclass(frozen=True)
class Moments:
    """Mean scores of a set of samples, or of a mixture of several: means over all samples, not over a class.

    Attributes
    ----------
    positives
        Share of the positive samples; those of a mixture add up to 1 as far as its weights do.
    positive_sum
        Mean of ``h I[y=1]``.
    negative_sum
        Mean of ``h I[y=-1]``.
    """

    positives: float
    negatives: float
    positive_sum: float
    negative_sum: float

    @classmethod
    def mixture(cls, parts: Iterable[tuple[float, Moments]]) -> Moments:
        """Return the moments of ``sum_k lambda_k P_k`` from pairs of lambda_k and the moments of P_k."""
        total: NDArray[np.float64] = np.zeros(4)
        for weight, part in parts:
            total += weight * np.array(astuple(part))
        return cls(*total.tolist())

    def in_shares(self, positives: float) -> Moments:
        """Return the moments of the same classes where this share of the samples is positive."""
        up, down = self.means
        negatives = 1 - positives
        return Moments(positives, negatives, up * positives, down * negatives)

    @property
    def has_both_classes(self) -> bool:
        """True if there are samples of both classes, so that class means exist."""
        return self.positives > 0 and self.negatives > 0

    @property
    def means(self) -> tuple[float, float]:
        """Mean scores m_+ and m_- of the positive and of the negative samples."""
        if not self.has_both_classes:
            raise DataError(
                "the mean scores of positive and negative samples need samples of both classes; check "
                "objective.positive and the partition"
            )
        return self.positive_sum / self.positives, self.negative_sum / self.negatives

    def alpha(self, prior: float) -> float:
        """Return the maximiser alpha* for a prior p; with p equal to the share of positives it is m_- - m_+."""
        return (prior * self.negative_sum - (1 - prior) * self.positive_sum) / (prior * (1 - prior))
