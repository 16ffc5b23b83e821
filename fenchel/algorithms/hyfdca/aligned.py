"""Arithmetic on aligned vectors, whose entries are numbers or ciphertexts.

The server selects the entries of one client, adds the clients' shares, and stores the result. These operations are
the same for numbers and for ciphertexts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
"""Aligned vector: numbers, ciphertexts for arithmetic, or ciphertexts for storage and messages."""


@dataclass(frozen=True)
class Vectors:
    """Operations on aligned vectors of one kind. Shares are added in the order of client ids.

    Attributes
    ----------
    arrangement
        Positions of the clients' entries.
    cipher
        Public key, and layout of a ciphertext, which contains one block; ``None`` for vectors of numbers.
    """

    arrangement: Arrangement
    cipher: tuple[PublicKey, Layout] | None = None

    def zeros(self) -> Stored:
        """Return the zero vector. Its ciphertexts are not blinded, so they reveal that they are zeros."""
        return self._zeros(self.arrangement.items, self.arrangement.blocks)

    def own_zeros(self, client: str) -> Stored:
        """Return zeros for the entries of one client."""
        held = self.arrangement.slices[client]
        return self._zeros(len(held.positions), len(held.blocks))

    def expected(self, client: str, blocks: Indices | None = None) -> Expected:
        """Return the schema of a client's share: its entries, or those of some of its blocks."""
        count = len(self._places(client, blocks))
        if self.cipher is None:
            return ArraySpec(np.float64, (count,))
        key, layout = self.cipher
        return CipherSpec(key, layout, count * layout.slots)

    def part(self, vector: Stored, client: str, blocks: Indices | None = None) -> Value:
        """Return a copy of a client's entries, or of those in ``blocks``, positions among the client's blocks."""
        places = self._places(client, blocks)
        if self.cipher is None:
            numbers: Vector = _numbers(vector)[places]
            return numbers
        return self._ciphers(vector).take(places).to_wire()

    def total(self, shares: Mapping[str, Stored]) -> Stored:
        """Return the sum of the shares of clients, each with all entries of its client; raise the errors of ``add``."""
        total = self.zeros()
        for client in sorted(shares):
            self.add(total, client, shares[client])
        return total

    def selected(self, own: Stored, client: str, blocks: Indices | None) -> Stored:
        """Return the entries of some blocks of one client's vector."""
        if blocks is None:
            return own
        if self.cipher is None:
            numbers: Vector = _numbers(own)[entries_of(self.arrangement.slices[client].sizes, blocks)]
            return numbers
        return self._ciphers(own).take(blocks)

    def replaced(self, own: Stored, share: Value, client: str, blocks: Indices) -> Stored:
        """Return a new vector of one client's entries, with those of some blocks replaced."""
        changed = self.copied(own)
        if isinstance(changed, CipherVector):
            changed.replace_at(blocks, self._ciphers(share))
        else:
            changed[entries_of(self.arrangement.slices[client].sizes, blocks)] = _numbers(share)
        return changed

    def copied(self, vector: Stored) -> Vector | CipherVector:
        """Return a new vector with the same values.

        It counts as a single value in the range of its slots (``CipherVector.settled``), so that the number of
        additions does not grow from round to round.
        """
        return _numbers(vector).copy() if self.cipher is None else self._ciphers(vector).settled()

    def add(self, total: Stored, client: str, share: Stored | Value, blocks: Indices | None = None) -> None:
        """Add a client's share, which has only the entries in ``blocks``, in place.

        Raises
        ------
        EncryptionError
            If the sum may overflow the slots of ciphertexts.
        """
        places = self._places(client, blocks)
        if isinstance(total, CipherVector):
            total.add_at(places, self._ciphers(share))
        else:
            _numbers(total)[places] += _numbers(share)

    def _zeros(self, items: int, blocks: int) -> Stored:
        if self.cipher is None:
            return np.zeros(items)
        key, layout = self.cipher
        return CipherVector.zeros(key, layout, blocks * layout.slots)

    def _places(self, client: str, blocks: Indices | None) -> Indices:
        held = self.arrangement.slices[client]
        if self.cipher is not None:
            return held.blocks if blocks is None else held.blocks[blocks]
        return held.positions if blocks is None else held.positions[entries_of(held.sizes, blocks)]

    def _ciphers(self, vector: Stored | Value) -> CipherVector:
        if isinstance(vector, CipherVector):
            return vector
        assert isinstance(vector, Ciphertexts), "replies are checked before they get here"
        assert self.cipher is not None
        return CipherVector.from_checked(vector, self.cipher[0])


class Accumulator:
    """Sum of clients' shares, which are added as they arrive, in the order of client ids.

    Parameters
    ----------
    vectors
        Operations on vectors of this kind.
    total
        Vector to which the shares are added, in place.
    blocks
        Blocks in the share of each client, as positions among the client's blocks; ``None`` for all.
    kept
        Earlier shares, with all entries of their clients, that stand in for clients without a new share.
    """

    def __init__(
        self,
        vectors: Vectors,
        total: Stored,
        blocks: Mapping[str, Indices | None],
        kept: Mapping[str, Stored] | None = None,
    ) -> None:
        self._vectors, self._total, self._blocks = vectors, total, blocks
        self._kept = deque(sorted((kept or {}).items()))  # earlier shares whose turn has not come

    def add(self, client: str, share: Value) -> None:
        """Add a share; raise the errors of :meth:`Vectors.add`."""
        self._add_kept(before=client)
        if self._kept and self._kept[0][0] == client:
            self._kept.popleft()
        self._vectors.add(self._total, client, share, self._blocks[client])

    def finish(self) -> Stored:
        """Return the sum, with the earlier shares of all clients without a new share."""
        self._add_kept()
        return self._total

    def _add_kept(self, before: str | None = None) -> None:
        """Add the earlier shares of the clients before one; ``None``: of all that are left."""
        while self._kept and (before is None or self._kept[0][0] < before):
            client, own = self._kept.popleft()
            blocks = self._blocks[client]
            self._vectors.add(self._total, client, self._vectors.selected(own, client, blocks), blocks)


def _numbers(value: Stored | Value) -> Vector:
    assert isinstance(value, np.ndarray), "replies are checked before they get here"
    return value
