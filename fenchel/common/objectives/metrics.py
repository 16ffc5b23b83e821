"""Metrics of a model on samples, represented as sums that are additive over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

FIGURES = (
    "objective",
    "uniform_objective",
    "train_loss",
    "train_accuracy",
    "train_auc",
    "train_auc_error",
    "test_loss",
    "test_accuracy",
    "test_auc",
    "test_partial_auc",
    "test_average_precision",
    "holdout_loss",
    "holdout_accuracy",
    "holdout_auc",
    "holdout_auc_error",
    "worst_client_loss",
    "client_accuracy_mean",
    "client_accuracy_worst",
    "client_accuracy_std",
    "client_accuracy_worst_tenth",
)
"""Names of the figures of an evaluation, in the order of the columns of ``metrics.parquet``."""


@dataclass(frozen=True)
class Metrics:
    """Loss and number of correct predictions of a model, summed over samples.

    The sums are additive over clients: two ``Metrics`` add up to the ``Metrics`` of the union of their samples.
    :meth:`fenchel.Objective.evaluate` returns one.

    Attributes
    ----------
    loss_sum : float
        Sum of the losses of the samples, without regularisation.
    correct : int or None
        Number of samples whose class is predicted correctly. ``None`` in regression.
    samples : int
        Number of samples.

    Examples
    --------
    >>> import fenchel
    >>> both = fenchel.Metrics(loss_sum=3.0, correct=5, samples=6) + fenchel.Metrics(loss_sum=1.0, correct=1, samples=2)
    >>> both.loss, both.accuracy
    (0.5, 0.75)
    """

    loss_sum: float
    correct: int | None
    samples: int

    @property
    def loss(self) -> float:
        """Mean loss over the samples, not-a-number if there are no samples."""
        return self.loss_sum / self.samples if self.samples else math.nan

    @property
    def accuracy(self) -> float | None:
        """Fraction of samples predicted correctly, or ``None`` in regression and without samples."""
        return None if self.correct is None or not self.samples else self.correct / self.samples

    def __add__(self, other: Metrics) -> Metrics:
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return Metrics(self.loss_sum + other.loss_sum, correct, self.samples + other.samples)

    @classmethod
    def total(cls, parts: Iterable[Metrics]) -> Metrics:
        """Return the metrics of all parts together.

        The result does not depend on the order of the parts: losses are summed with a single rounding.

        Parameters
        ----------
        parts : iterable of Metrics
            Metrics of disjoint sets of samples, such as those of the clients.

        Returns
        -------
        Metrics
            Sums over all parts. ``correct`` is ``None`` if it is ``None`` in any part.
        """
        every = list(parts)
        counts = [part.correct for part in every if part.correct is not None]
        return cls(
            loss_sum=math.fsum(part.loss_sum for part in every),
            correct=sum(counts) if len(counts) == len(every) else None,
            samples=sum(part.samples for part in every),
        )
