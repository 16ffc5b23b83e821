"""Vectors as the server received them, coordinate by coordinate.

The other end of ``fenchel/common/compression/uplink.py``. Clients may send different coordinates; a sum then goes
over those that sent one, and so does a mean (FedPDM paper, equations 20 and 23): supports are sets of
indices, and a zero that was sent counts like any other value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.shared_index_sets import uplink_support
from fenchel.common.compression.sparsification import kept
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.schema import ArraySpec, Expected, Form
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.cohort import Reduced


@dataclass(frozen=True)
class ReceivedVector:
    """Sums and means of a vector that clients sent, in the model's dtype.

    Attributes
    ----------
    replies
        Of a phase whose handler sent the vector through its uplink.
    name
        The vector's in each reply.
    around
        The model that the clients began with, shape (d,).
    uncovered
        The mean where no client sent a coordinate, shape (d,).
    support
        The coordinates that all clients sent, and the replies do not name, shape (k,); ``None``: there are none such.
    is_whole
        Whether all clients sent all coordinates.
    holds
        Whether coordinates that no client sent stay as they were; else they become zero.
    """

    replies: Reduced
    name: str
    around: Vector
    uncovered: Vector
    support: Indices | None
    is_whole: bool
    holds: bool

    @cached_property
    def total(self) -> Vector:
        """Sum of what was sent, weighted where the clients are, shape (d,); 0 where no client sent a coordinate."""
        return self._placed(self.replies.sum(self.name))

    @cached_property
    def coverage(self) -> Vector:
        """w, the weight of those that sent each coordinate, shape (d,); their number where all weigh the same."""
        if self.is_whole or self.support is not None:
            return self._placed(self.replies.weight)
        return self._placed(self.replies.coverage(self.name))

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """Coordinates that at least one client sent, as a mask, shape (d,)."""
        return self.coverage > 0

    def _placed(self, entries: Vector | float) -> Vector:
        """Return a vector of shape (d,) with these entries where they belong."""
        if self.support is None and isinstance(entries, np.ndarray):
            return entries.astype(self.around.dtype, copy=False)
        whole = np.zeros_like(self.around)
        whole[slice(None) if self.support is None else self.support] = entries
        return whole

    def mean(self, uncovered: Vector | None = None) -> Vector:
        """Return the mean over those that sent a coordinate, shape (d,).

        Parameters
        ----------
        uncovered
            Shape (d,), where no client did. Default: what the settings say (``uplink.sparsify.fill``).
        """
        if self.is_whole:
            return self._placed(self.replies.mean(self.name))
        one = self.coverage.dtype.type(1)
        mean = self.total / np.where(self.covered, self.coverage, one)
        return np.where(self.covered, mean, self.uncovered if uncovered is None else uncovered)

    def held(self, model: Vector) -> Vector:
        """Return a model, shape (d,), whose uncovered coordinates stay as they were, if the settings want that."""
        return np.where(self.covered, model, self.around) if self.holds else model


@dataclass(frozen=True)
class ServerUplink:
    """The way up, seen from the server.

    Attributes
    ----------
    settings
        What clients do to their vectors.
    seed
        Of the run.
    noisy
        Whether what clients send carries noise.
    """

    settings: Uplink
    seed: int
    noisy: bool = False

    @property
    def is_plain(self) -> bool:
        """True if vectors arrive as the clients computed them."""
        return self.settings.is_plain and not self.noisy

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

    def received(
        self, replies: Reduced, name: str, around: Vector, t: int, *, minus: Vector | float = 0.0
    ) -> ReceivedVector:
        """Return what came of a vector.

        Parameters
        ----------
        replies
            Of a phase whose handler sent the vector through its uplink.
        name
            The vector's in each reply.
        around
            The model that the clients began with, shape (d,).
        t
            The round.
        minus
            What the clients subtracted before they sent, shape (d,).
        """
        sparsifier = self.settings.sparsify
        holds = sparsifier is not None and sparsifier.holds
        uncovered = (around if holds else np.zeros_like(around)) - minus
        support = uplink_support(sparsifier, around, self.seed, t) if sparsifier and sparsifier.is_shared else None
        return ReceivedVector(replies, name, around, uncovered, support, sparsifier is None, holds)

    def entries(self, sent: Vector | SparseVector, around: Vector, t: int) -> tuple[Indices | slice, Vector]:
        """Return which coordinates one client sent of a vector, and their values."""
        sparsifier = self.settings.sparsify
        if isinstance(sent, SparseVector):
            return sent.indices, sent.values.astype(around.dtype, copy=False)
        values = sent.astype(around.dtype, copy=False)
        if sparsifier is None:
            return slice(None), values
        return uplink_support(sparsifier, around, self.seed, t), values
