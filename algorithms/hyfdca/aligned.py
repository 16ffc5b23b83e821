"""Arithmetic on aligned vectors, of which the server may see the entries or not.

The server does three things with them: it takes the part that one client holds, it adds up what clients
sent, and it remembers. All three are the same whether entries are numbers or ciphertexts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from fenchel.algorithms.hyfdca.alignment import Arrangement
from fenchel.algorithms.hyfdca.settings import entries_of
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.wire.schema import ArraySpec, CipherSpec, Expected
from fenchel.common.wire.values import Value

Stored: TypeAlias = Vector | CipherVector | Ciphertexts
"""An aligned vector: numbers, ciphertexts to compute with, or ciphertexts as they are stored and sent."""


class Vectors(Protocol):
    """How the aligned vectors of one kind are computed with."""

    def zeros(self) -> Stored:
        """Return the vector of zeros."""

    def expected(self, client: str, blocks: Indices | None = None) -> Expected:
        """Return what a client must send: its entries, or those of some of its blocks."""

    def part(self, vector: Stored, client: str, blocks: Indices | None = None) -> Value:
        """Return the entries that a client holds, or those of some of its blocks (their places among its own)."""

    def total(self, shares: Mapping[str, Stored], blocks: Mapping[str, Indices | None] | None = None) -> Stored:
        """Return the sum of all clients' shares; each is of all that its client holds.

        With ``blocks``, only these of each client are added, and the others are zero.
        """

    def added(self, vector: Stored, shares: Mapping[str, Value], blocks: Mapping[str, Indices] | None = None) -> Stored:
        """Return the vector with clients' shares added: of all their blocks, or of some."""

    def own_zeros(self, client: str) -> Stored:
        """Return zeros for what one client holds."""

    def replaced(self, own: Stored, share: Value, client: str, blocks: Indices) -> Stored:
        """Return what one client holds, with the entries of some of its blocks replaced."""


@dataclass(frozen=True)
class ClearVectors:
    """Vectors of numbers."""

    arrangement: Arrangement  # who holds which entries

    def zeros(self) -> Vector:
        """Return zeros, shape (items,)."""
        return np.zeros(self.arrangement.items)

    def expected(self, client: str, blocks: Indices | None = None) -> Expected:
        """Return the shape of a client's part."""
        return ArraySpec(np.float64, (len(self._places(client, blocks)),))

    def part(self, vector: Stored, client: str, blocks: Indices | None = None) -> Value:
        """Return a client's entries, a copy."""
        part: Vector = _numbers(vector)[self._places(client, blocks)]
        return part

    def total(self, shares: Mapping[str, Stored], blocks: Mapping[str, Indices | None] | None = None) -> Vector:
        """Return the sum, in the order of client ids."""
        total = self.zeros()
        for client in sorted(shares):
            share, some = _numbers(shares[client]), None if blocks is None else blocks[client]
            if some is not None:
                share = share[entries_of(self.arrangement.slices[client].sizes, some)]
            total[self._places(client, some)] += share
        return total

    def added(self, vector: Stored, shares: Mapping[str, Value], blocks: Mapping[str, Indices] | None = None) -> Vector:
        """Return a new array."""
        total = _numbers(vector).copy()
        for client in sorted(shares):
            total[self._places(client, None if blocks is None else blocks[client])] += _numbers(shares[client])
        return total

    def own_zeros(self, client: str) -> Vector:
        """Return zeros, shape (N_k,)."""
        return np.zeros(len(self.arrangement.slices[client].positions))

    def replaced(self, own: Stored, share: Value, client: str, blocks: Indices) -> Vector:
        """Return a new array."""
        changed = _numbers(own).copy()
        changed[entries_of(self.arrangement.slices[client].sizes, blocks)] = _numbers(share)
        return changed

    def _places(self, client: str, blocks: Indices | None = None) -> Indices:
        held = self.arrangement.slices[client]
        return held.positions if blocks is None else held.positions[entries_of(held.sizes, blocks)]


@dataclass(frozen=True)
class EncryptedVectors:
    """Vectors of ciphertexts, one for each block."""

    arrangement: Arrangement  # who holds which blocks
    key: PublicKey  # the public key
    layout: Layout  # how values lie in a ciphertext

    def zeros(self) -> CipherVector:
        """Return zeros that everybody can tell from encrypted ones."""
        return self._zeros(self.arrangement.blocks)

    def expected(self, client: str, blocks: Indices | None = None) -> Expected:
        """Return key, layout and number of a client's ciphertexts, each fresh."""
        return CipherSpec(self.key, self.layout, len(self._places(client, blocks)) * self.layout.slots)

    def part(self, vector: Stored, client: str, blocks: Indices | None = None) -> Value:
        """Return a client's ciphertexts."""
        return self._ciphers(vector).take(self._places(client, blocks)).to_wire()

    def total(self, shares: Mapping[str, Stored], blocks: Mapping[str, Indices | None] | None = None) -> CipherVector:
        """Return the sum; EncryptionError if slots have no room for it."""
        total = self.zeros()
        for client in sorted(shares):
            share, some = self._ciphers(shares[client]), None if blocks is None else blocks[client]
            total.add_at(self._places(client, some), share if some is None else share.take(some))
        return total

    def added(
        self, vector: Stored, shares: Mapping[str, Value], blocks: Mapping[str, Indices] | None = None
    ) -> CipherVector:
        """Return the sum, as one that lies in the range of a single value: see ``CipherVector.settled``."""
        total = self._ciphers(vector).settled()
        for client in sorted(shares):
            places = self._places(client, None if blocks is None else blocks[client])
            total.add_at(places, self._ciphers(shares[client]))
        return total

    def own_zeros(self, client: str) -> CipherVector:
        """Return zeros for a client's blocks."""
        return self._zeros(len(self.arrangement.slices[client].blocks))

    def replaced(self, own: Stored, share: Value, client: str, blocks: Indices) -> CipherVector:
        """Return a new vector."""
        changed = self._ciphers(own).settled()
        for place, ciphertext in zip(blocks.tolist(), self._ciphers(share).ciphertexts, strict=True):
            changed.ciphertexts[place] = ciphertext
        return changed

    def _zeros(self, blocks: int) -> CipherVector:
        return CipherVector.zeros(self.key, self.layout, blocks * self.layout.slots)

    def _places(self, client: str, blocks: Indices | None = None) -> Indices:
        held = self.arrangement.slices[client].blocks
        return held if blocks is None else held[blocks]

    def _ciphers(self, vector: Stored | Value) -> CipherVector:
        if isinstance(vector, CipherVector):
            return vector
        assert isinstance(vector, Ciphertexts), "replies are checked before they get here"
        return CipherVector.from_wire(vector, self.key)


def cipher_sum(shares: Iterable[Value], key: PublicKey) -> CipherVector:
    """Return the sum of encrypted vectors of the same layout."""
    total: CipherVector | None = None
    for share in shares:
        assert isinstance(share, Ciphertexts), "replies are checked before they get here"
        vector = CipherVector.from_wire(share, key)
        total = vector if total is None else total + vector
    assert total is not None, "an exchange has at least one reply"
    return total


def _numbers(value: Stored | Value) -> Vector:
    assert isinstance(value, np.ndarray), "replies are checked before they get here"
    return value
