"""Table of the numbers of samples of each class on each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.source import DataSource


@dataclass(frozen=True)
class PartitionTable:
    """Numbers of samples and features of each client in a partition.

    Attributes
    ----------
    title
        Data set and kind of partition.
    class_names
        Names of the classes; ``("samples",)`` for regression.
    counts
        Number of samples of each class on each client, shape (classes, clients), int64.
    features
        Number of features on each client, shape (clients,), int64.
    positive
        Mask of positive classes, shape (classes,); ``None`` without positive classes.
    left_out
        Number of training samples without a holder.
    """

    title: str
    class_names: tuple[str, ...]
    counts: NDArray[np.int64]
    features: NDArray[np.int64]
    positive: NDArray[np.bool_] | None = None
    left_out: int = 0

    @property
    def marked_names(self) -> tuple[str, ...]:
        """Names of the classes, with a plus sign after positive ones."""
        if self.positive is None:
            return self.class_names
        return tuple(
            f"{name} +" if positive else name for name, positive in zip(self.class_names, self.positive, strict=True)
        )

    @property
    def shared_classes(self) -> int:
        """Number of classes of which several clients hold samples."""
        return int(((self.counts > 0).sum(axis=1) > 1).sum())

    @property
    def positives(self) -> NDArray[np.int64] | None:
        """Number of positive samples on each client, shape (clients,); ``None`` without positive classes."""
        return None if self.positive is None else self.counts[self.positive].sum(axis=0)

    @property
    def rates(self) -> NDArray[np.float64] | None:
        """Fraction of positive samples on each client, shape (clients,), or ``None`` without positive classes."""
        found = self.positives
        return None if found is None else found / self.counts.sum(axis=0)


def partition_table(source: DataSource, clients: int) -> PartitionTable:
    """Return the numbers of samples of each class on each client, including holdouts."""
    parts = source.parts(clients)
    problem = source.problem
    classes = max(problem.classes, 1)
    labels = source.labels if problem.classes else np.zeros(problem.samples, np.int64)
    counts = np.stack([np.bincount(labels[part.samples], minlength=classes) for part in parts], axis=1)
    settings = source.settings
    title = f"{settings.name or (settings.file.name if settings.file else 'data')}, {settings.partition.kind}"
    if settings.imbalance is not None:
        title += f", imratio {settings.imbalance.imratio:.3g}"
    return PartitionTable(
        title=title,
        class_names=problem.class_names or ("samples",),
        counts=counts.astype(np.int64),
        features=np.array([problem.features if part.features is None else len(part.features) for part in parts]),
        positive=None if source.positive is None else np.isin(np.arange(classes), source.positive),
        left_out=problem.samples - len(np.unique(np.concatenate([part.samples for part in parts]))),
    )
