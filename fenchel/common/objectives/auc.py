"""Min-max function whose minimum over scorers maximises a surrogate of the area under the ROC curve (AUC).

    F(a, b, alpha; h, y) = (1-p) (h-a)^2 I[y=1] + p (h-b)^2 I[y=-1]
                           + 2 (1+alpha) (p h I[y=-1] - (1-p) h I[y=1]) - p (1-p) alpha^2

with the score h of a sample and its class y (docs/specifications/codasca.md, sections 1.2 to 1.5). The AUC is a mean
over pairs of a positive and a negative sample. In contrast, the objective is a mean of F over single samples, so no
client needs pairs. The objective is minimised over the scorer, a and b, and maximised over alpha. If p is the fraction
of positive samples,

    mean over pairs of (1 - h(x) + h(x'))^2 = 1 + min_{a,b} max_alpha mean F / (p (1-p)).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.errors import DataError

Positive: TypeAlias = NDArray[np.bool_]
"""Booleans, shape (n,), true for samples of the positive class."""

AUXILIARY = 3
"""Number of the auxiliary variables a, b and alpha."""


class MinMax(NamedTuple):
    """Function F and its derivatives at the scores of some samples.

    Attributes
    ----------
    value
        Value of F for each sample, shape (n,).
    slopes
        Derivative dF/dh for each sample, shape (n,).
    gradient
        Gradient of the mean of F with respect to (a, b, alpha), shape (3,).
    """

    value: Vector
    slopes: Vector
    gradient: Vector


def min_max(prior: float, scores: Vector, positive: Positive, auxiliary: Vector) -> MinMax:
    """Return the function F and its derivatives. A class may be missing.

    Parameters
    ----------
    prior
        Class prior p, 0 < p < 1, equal for all clients (docs/specifications/codasca.md, section 1.5).
    scores
        Scores h, shape (n,).
    positive
        Indicators I[y=1] of the positive class, shape (n,).
    auxiliary
        Auxiliary variables (a, b, alpha), shape (3,).
    """
    n, p, (a, b, alpha) = scores.size, prior, auxiliary
    of_positive = (1 - p) * ((scores - a) ** 2 - 2 * (1 + alpha) * scores)
    of_negative = p * ((scores - b) ** 2 + 2 * (1 + alpha) * scores)
    above = float(np.sum(scores, where=positive, dtype=np.float64)) / n
    below = float(np.sum(scores, where=~positive, dtype=np.float64)) / n
    share = float(np.count_nonzero(positive)) / n
    return MinMax(
        value=np.where(positive, of_positive, of_negative) - p * (1 - p) * alpha**2,
        slopes=np.where(positive, 2 * (1 - p) * (scores - a - 1 - alpha), 2 * p * (scores - b + 1 + alpha)),
        gradient=np.array(
            [
                -2 * (1 - p) * (above - float(a) * share),
                -2 * p * (below - float(b) * (1 - share)),
                2 * (p * below - (1 - p) * above) - 2 * p * (1 - p) * float(alpha),
            ]
        ),
    )


@dataclass(frozen=True)
class Moments:
    """Class fractions and score sums of a set of samples, divided by the number of samples.

    The moments of a mixture of sets are the weighted sums of the sets' moments.

    Attributes
    ----------
    positives, negatives
        Fractions of positive and of negative samples.
    positive_sum
        Mean of ``h I[y=1]`` over all samples.
    negative_sum
        Mean of ``h I[y=-1]`` over all samples.
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
        """Return the moments for another fraction of positive samples, with unchanged class means."""
        up, down = self.means
        negatives = 1 - positives
        return Moments(positives, negatives, up * positives, down * negatives)

    @property
    def has_both_classes(self) -> bool:
        """True if both classes have samples, so that both class means exist."""
        return self.positives > 0 and self.negatives > 0

    @property
    def means(self) -> tuple[float, float]:
        """Mean scores m_+ and m_- of the positive and negative samples. Raise a DataError if a class is missing."""
        if not self.has_both_classes:
            raise DataError(
                "the mean scores of positive and negative samples need samples of both classes; check "
                "objective.positive and the partition"
            )
        return self.positive_sum / self.positives, self.negative_sum / self.negatives

    def alpha(self, prior: float) -> float:
        """Return the maximiser alpha* for a prior p.

        If p is the fraction of positive samples, alpha* is m_- - m_+.
        """
        return (prior * self.negative_sum - (1 - prior) * self.positive_sum) / (prior * (1 - prior))
