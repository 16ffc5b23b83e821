"""How well a model does on some samples, in numbers that add over clients."""

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
"""What the evaluation of a model tells, in the order of the columns of ``metrics.parquet``."""


@dataclass(frozen=True)
class Metrics:
    """Sums over samples. The sum of two metrics is the metrics of both sets of samples together.

    Attributes
    ----------
    loss_sum
        Sum of the samples' losses, without regularisation.
    correct
        Number of samples whose class is predicted rightly; ``None`` in regression.
    samples
        Number of samples.
    """

    loss_sum: float
    correct: int | None
    samples: int

    @property
    def loss(self) -> float:
        """Mean loss; nan without samples."""
        return self.loss_sum / self.samples if self.samples else math.nan

    @property
    def accuracy(self) -> float | None:
        """Fraction of samples predicted rightly; ``None`` in regression or without samples."""
        return None if self.correct is None or not self.samples else self.correct / self.samples

    def __add__(self, other: Metrics) -> Metrics:
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return Metrics(self.loss_sum + other.loss_sum, correct, self.samples + other.samples)

    @classmethod
    def total(cls, parts: Iterable[Metrics]) -> Metrics:
        """Return the metrics of all parts together.

        Counts are exact, and so is the loss up to one rounding: the order of the parts does not matter.
        """
        every = list(parts)
        counts = [part.correct for part in every if part.correct is not None]
        return cls(
            loss_sum=math.fsum(part.loss_sum for part in every),
            correct=sum(counts) if len(counts) == len(every) else None,
            samples=sum(part.samples for part in every),
        )
