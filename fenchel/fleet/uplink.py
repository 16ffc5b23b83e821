"""What clients sent of their vectors, added up coordinate by coordinate.

The other end of ``fenchel/common/compression/uplink.py``. Clients may send different coordinates; a sum then goes
over those that sent one, and so does a mean (FedPDM paper, equations 20 and 23): supports are sets of
indices, and a zero that was sent counts like any other value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.shared_index_sets import uplink_support
from fenchel.common.compression.sparsification import kept
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.schema import ArraySpec, Expected, Form
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.cohort import Reduced


@dataclass(frozen=True)
class Aggregate:
    """Sums of vectors of which each client sent some coordinates."""

    total: Vector
    """Sum of what was sent, weighted where the clients are, shape (d,), dtype of the model; 0 where nobody sent
    anything."""
    coverage: Vector
    """w, the weight of those that sent each coordinate, shape (d,), dtype of the model; their number where all weigh
    the same."""

    def mean(self, uncovered: Vector) -> Vector:
        """Return the mean over those that sent a coordinate; ``uncovered``, shape (d,), where nobody did."""
        covered = self.coverage > 0
        one = self.coverage.dtype.type(1)
        mean: Vector = np.where(covered, self.total / np.where(covered, self.coverage, one), uncovered)
        return mean


@dataclass(frozen=True)
class ServerUplink:
    """The way up, seen from the server."""

    settings: Uplink  # what clients do to their vectors
    seed: int  # of the run
    noisy: bool = False  # whether what clients send carries noise

    @property
    def holds(self) -> bool:
        """Whether coordinates that nobody sent stay as they were; else they become zero."""
        return self.settings.sparsify is not None and self.settings.sparsify.holds

    def expected(self, model: Vector) -> Expected:
        """Return what a reply must hold for a vector of the model's shape and dtype."""
        sparsifier = self.settings.sparsify
        dtype = np.dtype(self.settings.dtype or model.dtype)
        form: Form = "noisy" if self.noisy else "clear"
        if sparsifier is None:
            return ArraySpec(dtype, model.shape, form=form)
        count = kept(sparsifier.keep, model.size)
        if sparsifier.is_shared:
            return ArraySpec(dtype, (count,), form=form)
        return ArraySpec(dtype, model.shape, kinds=(SparseVector,), count=count, form=form)

    def aggregate(self, replies: Reduced, name: str, around: Vector, t: int) -> Aggregate:
        """Return the sums of a vector over all replies.

        replies: of a phase whose handler sent the vector through its uplink.
        around: what the clients were sent, shape (d,).
        """
        sparsifier = self.settings.sparsify
        if sparsifier is None:
            total: Vector = replies.sum(name).astype(around.dtype, copy=False)
            return Aggregate(total, np.full_like(around, replies.weight))
        if not sparsifier.is_shared:
            total = replies.sum(name).astype(around.dtype, copy=False)
            return Aggregate(total, replies.coverage(name).astype(around.dtype))
        support = uplink_support(sparsifier, around, self.seed, t)
        total, coverage = np.zeros_like(around), np.zeros_like(around)
        total[support] = replies.sum(name)
        coverage[support] = replies.weight
        return Aggregate(total, coverage)

    def entries(self, sent: Vector | SparseVector, around: Vector, t: int) -> tuple[Indices | slice, Vector]:
        """Return which coordinates one client sent of a vector, and their values; see :meth:`aggregate`."""
        sparsifier = self.settings.sparsify
        if isinstance(sent, SparseVector):
            return sent.indices, sent.values.astype(around.dtype, copy=False)
        values = sent.astype(around.dtype, copy=False)
        if sparsifier is None:
            return slice(None), values
        return uplink_support(sparsifier, around, self.seed, t), values

    def mean(self, replies: Reduced, name: str, around: Vector, t: int) -> Vector:
        """Return the mean of a vector over all replies, shape (d,); where nobody sent anything, zero or ``around``.

        Which of the two, ``uplink.sparsify.fill`` says.
        """
        sparsifier = self.settings.sparsify
        if sparsifier is None:
            return replies.mean(name).astype(around.dtype, copy=False)
        uncovered = around if self.holds else np.zeros_like(around)
        return self.aggregate(replies, name, around, t).mean(uncovered)
