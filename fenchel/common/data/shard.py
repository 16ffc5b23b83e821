"""The data that one client holds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Matrix

_NAMES = 1 << 19  # bytes of all names of columns that are sent, which must fit into a frame


def are_modest(names: Sequence[str]) -> bool:
    """Return whether names of columns are few and short enough to be sent, and to be kept with a model."""
    return sum(len(name.encode()) + 4 for name in names) <= _NAMES


def digest_of(names: Sequence[str]) -> bytes:
    """Return the SHA-256 of names of columns in their order; empty if there are none."""
    return hashlib.sha256("\0".join(names).encode()).digest() if names else b""


@dataclass(frozen=True)
class Shard:
    """Some samples, some features of a data set."""

    features: Matrix  # shape (n, m), dense or CSR, in the floating dtype of the settings
    labels: NDArray[np.generic]  # shape (n,): int64 class indices 0..classes-1, or floats for regression
    classes: int  # number of classes of the whole problem; 0 for regression
    total_features: int  # number of features of the whole problem; equals m unless the features are split
    samples_held: Indices  # global positions of the samples, shape (n,); names samples for algorithms that align them
    features_held: Indices | None = None  # global positions of the features, shape (m,); ``None``: all of them
    class_names: tuple[str, ...] = ()
    """Names of the classes, where a client's own file gave them; all clients of a run need the same."""
    column_names: tuple[str, ...] = ()
    """Names of the features without the bias, shape (m,), where a client's own file gave them and the settings do not;
    all clients of a run need the same, in the same order."""
    sample_ids: tuple[str, ...] | None = None
    """Identifiers of the samples, where a client's own file gave them. They leave it as keyed pseudonyms only."""

    @property
    def samples(self) -> int:
        """Number of samples, n."""
        return int(self.labels.shape[0])

    def take(self, rows: Indices) -> Shard:
        """Return the samples at ``rows``, shape (k,), in that order."""
        ids = None if self.sample_ids is None else tuple(self.sample_ids[row] for row in rows.tolist())
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            samples_held=self.samples_held[rows],
            sample_ids=ids,
        )

    @property
    def identifiers(self) -> tuple[str, ...]:
        """What the samples are called when clients find those that they have in common, one for each row.

        The file's identifiers; without them, the global positions as text.
        """
        return tuple(map(str, self.samples_held.tolist())) if self.sample_ids is None else self.sample_ids
