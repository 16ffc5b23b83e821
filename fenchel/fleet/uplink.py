"""The server's side of the compressed uplink: sums and means of the vectors that clients sent.

The client's side is ``fenchel/common/compression/uplink.py``. Clients may send different index sets. The sum and the
mean of a coordinate are over the clients that sent it (FedPDM paper, equations 20 and 23). A zero that was sent counts
like any other value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.sparsification import kept, uplink_support
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.schema import ArraySpec, Expected, Form
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.cohort import Reduced


@dataclass(frozen=True, kw_only=True)
class ReceivedVector:
    """Sums and means of a vector that clients sent, in the model's dtype.

    Attributes
    ----------
    replies
        Weighted sums of the replies of a phase whose handler sent the vector through its uplink.
    name
        Name of the vector in each reply.
    around
        Model that the clients started from, shape (d,).
    uncovered
        Values of the mean in coordinates that no client sent, shape (d,).
    support
        Index set, shape (k,), that all clients share and replies do not contain. ``None``: no shared set.
    is_whole
        True if all clients sent all coordinates.
    holds
        True if coordinates that no client sent keep their values, False if they become zero.
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
        """Sum over the clients with the weights of the replies, shape (d,); 0 in coordinates that no client sent."""
        return self._placed(self.replies.sum(self.name))

    @cached_property
    def coverage(self) -> Vector:
        """Total weight of the clients that sent each coordinate, shape (d,); their number if replies are unweighted."""
        if self.is_whole or self.support is not None:
            return self._placed(self.replies.weight)
        return self._placed(self.replies.coverage(self.name))

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """Mask of the coordinates that at least one client sent, shape (d,)."""
        return self.coverage > 0

    def _placed(self, entries: Vector | float) -> Vector:
        """Scatter entries of the shared index set into a vector of shape (d,)."""
        if self.support is None and isinstance(entries, np.ndarray):
            return entries.astype(self.around.dtype, copy=False)
        whole = np.zeros_like(self.around)
        whole[slice(None) if self.support is None else self.support] = entries
        return whole

    def mean(self, uncovered: Vector | None = None) -> Vector:
        """Return the mean of each coordinate over the clients that sent it, shape (d,).

        Parameters
        ----------
        uncovered
            Values in coordinates that no client sent, shape (d,). Default: those of the attribute ``uncovered``.
        """
        if self.is_whole:
            return self._placed(self.replies.mean(self.name))
        one = self.coverage.dtype.type(1)
        mean = self.total / np.where(self.covered, self.coverage, one)
        return np.where(self.covered, mean, self.uncovered if uncovered is None else uncovered)

    def held(self, model: Vector) -> Vector:
        """Return ``model``, shape (d,), with uncovered coordinates reset to those of ``around`` if ``holds``."""
        return np.where(self.covered, model, self.around) if self.holds else model


@dataclass(frozen=True)
class ServerUplink:
    """Schema and decoding of the vectors that clients send through the compressed uplink.

    Attributes
    ----------
    settings
        Section ``uplink`` of the settings.
    seed
        Seed of the run.
    noisy
        True if clients add noise to their vectors.
    """

    settings: Uplink
    seed: int
    noisy: bool = False

    @property
    def is_plain(self) -> bool:
        """True if clients send their vectors without compression or noise."""
        return self.settings.is_plain and not self.noisy

    def expected(self, model: Vector) -> Expected:
        """Return the schema of a vector of the model's shape and dtype in a reply."""
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
        """Return sums and means of a vector that clients sent.

        Parameters
        ----------
        replies
            Weighted sums of the replies of a phase whose handler sent the vector through its uplink.
        name
            Name of the vector in each reply.
        around
            Model that the clients started from, shape (d,).
        t
            Number of the round.
        minus
            Vector that the clients subtracted before they sent, shape (d,).
        """
        sparsifier = self.settings.sparsify
        holds = sparsifier is not None and sparsifier.holds
        uncovered = (around if holds else np.zeros_like(around)) - minus
        support = uplink_support(sparsifier, around, self.seed, t) if sparsifier and sparsifier.is_shared else None
        return ReceivedVector(
            replies=replies,
            name=name,
            around=around,
            uncovered=uncovered,
            support=support,
            is_whole=sparsifier is None,
            holds=holds,
        )

    def entries(self, sent: Vector | SparseVector, around: Vector, t: int) -> tuple[Indices | slice, Vector]:
        """Return the indices and values of the coordinates that one client sent.

        Parameters
        ----------
        sent
            Vector in the client's reply.
        around
            Model that the clients started from, shape (d,).
        t
            Number of the round.
        """
        sparsifier = self.settings.sparsify
        if isinstance(sent, SparseVector):
            return sent.indices, sent.values.astype(around.dtype, copy=False)
        values = sent.astype(around.dtype, copy=False)
        if sparsifier is None:
            return slice(None), values
        return uplink_support(sparsifier, around, self.seed, t), values
