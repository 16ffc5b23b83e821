"""Ranking metrics for two classes: AUC, partial AUC and average precision.

Ranking metrics belong to all samples jointly. They are not additive over clients, and their mean over clients differs
from the metric of all samples (docs/specifications/codasca.md, section 9.2, item 13).
:mod:`fenchel.common.objectives.score_groups` estimates the AUC of samples on several clients. Names and values of the
metrics are those of scikit-learn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.objectives.auc import Positive

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Ranking:
    """Scores of the samples of two classes, and the quality of the order in which they put the samples.

    Positive samples should have high scores. All metrics are not-a-number if a class is missing or a score is
    not-a-number. The metrics belong to all samples jointly. A mean of the metrics of several clients is another
    quantity (docs/specifications/codasca.md, section 9.2, item 13).

    Attributes
    ----------
    scores : numpy.ndarray of float, shape (n,)
        Score of each sample. The metrics depend only on the order of the scores.
    positive : numpy.ndarray of bool, shape (n,)
        True for the samples of the positive class.

    Examples
    --------
    >>> import fenchel
    >>> import numpy as np
    >>> ranking = fenchel.Ranking(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    >>> ranking.auc
    0.75
    """

    scores: Vector
    positive: Positive

    @cached_property
    def _found(self) -> tuple[Counts, Counts]:
        """Numbers of positive and of negative samples with one of the k highest scores, for k = 0, 1, ...

        Equal scores count as one score. Each array has the shape (distinct scores + 1,).
        """
        order = np.argsort(-self.scores, kind="stable")
        ordered = self.scores[order]
        last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), ordered.size - 1)
        positives = np.cumsum(self.positive[order], dtype=np.int64)[last]
        return np.append(0, positives), np.append(0, last + 1 - positives)

    @cached_property
    def _exists(self) -> bool:
        both = bool(self.positive.any()) and not self.positive.all()
        return both and not np.isnan(self.scores).any()

    @property
    def auc(self) -> float:
        """Area under the ROC curve.

        The area is the fraction of pairs of a positive and a negative sample in which the positive sample has the
        higher score. Pairs with equal scores count half (Mann and Whitney 1947).
        """
        if not self._exists:
            return math.nan
        positives, negatives = self._found
        twice = int(np.sum(np.diff(negatives) * (positives[1:] + positives[:-1])))
        return twice / (2 * int(positives[-1]) * int(negatives[-1]))

    def partial_auc(self, max_fpr: float) -> float:
        """Return the standardised area under the ROC curve up to a false-positive rate.

        The best value is 1, and random scores have the value 1/2 (McClish 1989). The definition is that of ``max_fpr``
        in scikit-learn's ``roc_auc_score``.

        Parameters
        ----------
        max_fpr : float
            Largest false-positive rate, above 0 and at most 1. With 1 the result is :attr:`fenchel.Ranking.auc`.

        Returns
        -------
        float
            Standardised partial area.

        Raises
        ------
        ValueError
            If ``max_fpr`` is not above 0 and at most 1.
        """
        if not 0 < max_fpr <= 1:
            raise ValueError(f"max_fpr must be above 0 and at most 1, not {max_fpr}")
        if not self._exists:
            return math.nan
        positives, negatives = self._found
        tpr, fpr = positives / positives[-1], negatives / negatives[-1]
        inside = int(np.searchsorted(fpr, max_fpr, side="right"))
        end = np.interp(max_fpr, fpr[inside - 1 : inside + 1], tpr[inside - 1 : inside + 1])
        area = np.trapezoid(np.append(tpr[:inside], end), np.append(fpr[:inside], max_fpr))
        of_chance = max_fpr**2 / 2
        return float((1 + (area - of_chance) / (max_fpr - of_chance)) / 2)

    @property
    def average_precision(self) -> float:
        """Area under the steps of the precision-recall curve, without interpolation.

        The average precision is a mean over the positive samples. Each contributes the precision among all samples with
        at least its score.
        """
        if not self._exists:
            return math.nan
        positives, negatives = self._found
        precision = positives[1:] / (positives + negatives)[1:]
        return float(np.sum(np.diff(positives) * precision) / positives[-1])
