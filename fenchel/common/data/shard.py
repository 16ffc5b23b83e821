"""Data of one client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Matrix

_NAMES = 1 << 19  # limit on the total size of column names in bytes, because they are sent in one frame


def are_modest(names: Sequence[str]) -> bool:
    """Return whether column names are few and short enough to be sent, and stored with a model."""
    return sum(len(name.encode()) + 4 for name in names) <= _NAMES


def digest_of(names: Sequence[str]) -> bytes:
    """Return the SHA-256 of column names in their order; empty if there are none."""
    return hashlib.sha256("\0".join(names).encode()).digest() if names else b""


@dataclass(frozen=True)
class Shard:
    """Samples and features of a data set that one client holds.

    An objective is built from a shard. A list of shards is one form of ``data`` of :func:`fenchel.up`.

    Attributes
    ----------
    features : numpy.ndarray or scipy.sparse.csr_array, shape (n, m)
        Features in the floating-point type of the settings.
    labels : numpy.ndarray, shape (n,)
        Classes as int64 from 0 to ``classes - 1``, or floats in regression.
    classes : int
        Number of classes of the whole problem, 0 in regression.
    total_features : int
        Number of features of the whole problem. It equals m unless features are split over clients.
    samples_held : numpy.ndarray of int64, shape (n,)
        Global positions of the samples. Algorithms that align samples identify them by these.
    features_held : numpy.ndarray of int64, shape (m,), optional
        Global positions of the features. ``None``, the default, for all features.
    class_names : tuple of str, default ()
        Names of the classes, if the client's own file has them. All clients of a run need the same.
    column_names : tuple of str, default ()
        Names of the features without the bias, if only the client's own file has them. All clients of a run need the
        same, in the same order.
    sample_ids : tuple of str, optional
        Identifiers of the samples, if the client's own file has them. They leave the shard only as keyed pseudonyms.

    Examples
    --------
    >>> import fenchel
    >>> import numpy as np
    >>> shard = fenchel.Shard(
    ...     features=np.eye(3), labels=np.array([0, 1, 1]), classes=2, total_features=3, samples_held=np.arange(3)
    ... )
    >>> shard.samples, shard.take(np.array([2, 0])).labels.tolist()
    (3, [1, 0])
    """

    features: Matrix
    labels: NDArray[np.generic]
    classes: int
    total_features: int
    samples_held: Indices
    features_held: Indices | None = None
    class_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    sample_ids: tuple[str, ...] | None = None

    @property
    def samples(self) -> int:
        """Number n of samples."""
        return int(self.labels.shape[0])

    def take(self, rows: Indices) -> Shard:
        """Return the shard of some samples.

        Parameters
        ----------
        rows : numpy.ndarray of int64, shape (k,)
            Positions of the samples in this shard.

        Returns
        -------
        Shard
            The samples in the order of ``rows``.
        """
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
        """Identifiers by which clients find the samples that they have in common, one for each sample.

        These are ``sample_ids`` if there are any, and the global positions as text if not.
        """
        return tuple(map(str, self.samples_held.tolist())) if self.sample_ids is None else self.sample_ids
