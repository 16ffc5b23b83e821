"""Encrypted vectors and their operations without a private key.

A plaintext holds many values (:mod:`fenchel.common.crypto.packing`). One multiplication of two ciphertexts modulo
``n^2`` (:mod:`fenchel.common.crypto.residues`) adds all values of one to those of the other.

The contents of ciphertexts cannot be checked here. The client that encrypts a vector must ensure that its values lie in
the range of its layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gmpy2 import mpz

from fenchel.common.arrays import Indices
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.choice import residues
from fenchel.common.crypto.residues.interface import Residues, big_endian, without_inverse
from fenchel.common.errors import EncryptionError, PayloadError


class CipherVector:
    """Vector of fixed-point numbers under Paillier encryption.

    Parameters
    ----------
    key
        Public key of the ciphertexts.
    layout
        Layout of the values in the plaintexts.
    count
        Number of values.
    additions
        Number of fresh vectors of which this is the sum. It bounds the magnitude of the values.
    ciphertexts
        The ``layout.ciphertexts(count)`` ciphertexts.

    Raises
    ------
    EncryptionError
        If the layout does not fit the key, the number of ciphertexts is wrong, or the sum could overflow a slot.
    """

    def __init__(self, key: PublicKey, layout: Layout, count: int, additions: int, ciphertexts: Residues) -> None:
        layout.check_fits(key)
        if count < 0 or len(ciphertexts) != layout.ciphertexts(count):
            raise EncryptionError(
                f"{len(ciphertexts)} ciphertexts given for {count} values at {layout.slots} values a ciphertext; "
                f"expected {layout.ciphertexts(count)}"
            )
        self.key = key
        self.layout = layout
        self.count = count
        self.ciphertexts = ciphertexts
        # The sums of different ciphertexts may have different numbers of terms: see add_at.
        self._terms = _checked([additions] * len(self.ciphertexts), layout)

    @classmethod
    def zeros(cls, key: PublicKey, layout: Layout, count: int) -> CipherVector:
        """Return the neutral element of addition.

        It is not secret, as these zeros are recognisable without a key. Its sum with an encrypted vector is as secret
        as that vector.
        """
        return cls(key, layout, count, 0, residues(key.backend).of(key, [mpz(1)] * layout.ciphertexts(count)))

    @property
    def additions(self) -> int:
        """Largest number of fresh vectors that were added in any ciphertext."""
        return max(self._terms, default=0)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return (
            f"CipherVector({self.count} values in {len(self.ciphertexts)} ciphertexts, {self.layout}, "
            f"additions {self.additions}, key {self.key.fingerprint})"
        )

    def __add__(self, other: CipherVector) -> CipherVector:
        """Return the sum; raise ``EncryptionError`` for another key, layout or length, or if a slot could overflow."""
        if not isinstance(other, CipherVector):
            return NotImplemented
        self._check_same_kind(other)
        if self.count != other.count:
            raise EncryptionError(
                f"encrypted vectors of {self.count} and {other.count} values cannot be added; expected the same number"
            )
        terms = _checked([mine + theirs for mine, theirs in zip(self._terms, other._terms, strict=True)], self.layout)
        return self._like(self.layout, self.count, terms, self.ciphertexts.products(other.ciphertexts))

    def take(self, indices: Sequence[int] | Indices) -> CipherVector:
        """Return a vector of selected ciphertexts, with ``len(indices) * layout.slots`` values.

        Parameters
        ----------
        indices
            Positions of ciphertexts, shape (k,).
        """
        places = self._places(indices)
        return self._like(
            self.layout,
            len(places) * self.layout.slots,
            [self._terms[place] for place in places],
            self.ciphertexts.take(places),
        )

    def replace_at(self, indices: Sequence[int] | Indices, other: CipherVector) -> None:
        """Replace the ciphertexts at some positions by those of another vector, in place; see :meth:`add_at`."""
        places = self._partners(indices, other)
        for place, terms in zip(places, other._terms, strict=True):
            self._terms[place] = terms
        self.ciphertexts.put(places, other.ciphertexts)

    def add_at(self, indices: Sequence[int] | Indices, other: CipherVector) -> None:
        """Add the ciphertexts of another vector to those at some positions, in place.

        Additions are counted for each ciphertext separately, so clients that contribute to different ciphertexts do not
        increase the same count. After an error the vector is unchanged.

        Parameters
        ----------
        indices
            Positions of ciphertexts, shape (k,). A repeated position is added to repeatedly.
        other
            Vector of k ciphertexts.

        Raises
        ------
        EncryptionError
            If a position is invalid, keys, layouts or lengths differ, or a slot could overflow.
        """
        places = self._partners(indices, other)
        terms = list(self._terms)
        for place, more in zip(places, other._terms, strict=True):
            terms[place] += more
        self._terms = _checked(terms, self.layout)
        self.ciphertexts.multiply_at(places, other.ciphertexts)

    def times(self, numerator: int, shift: int = 0) -> CipherVector:
        """Return the vector times ``numerator / 2^shift``, exactly.

        The integers in the plaintexts are multiplied by ``numerator``, and the point moves by ``shift`` bits. The
        result has the layout ``layout.rescaled(shift)`` and can be added to other vectors of that layout. The number of
        additions is multiplied by the magnitude of the factor and rounded up.

        Raises
        ------
        EncryptionError
            If ``shift`` is negative, a slot could overflow, or a ciphertext is invalid.
        """
        if shift < 0:
            raise EncryptionError(
                f"a shift of {shift} bits is negative; multiply the numerator by a power of two instead"
            )
        layout = self.layout.rescaled(shift)
        grown = abs(numerator) * self.layout.largest_fresh
        terms = _checked([-(-terms * grown // layout.largest_fresh) for terms in self._terms], layout)
        try:
            powers = self.ciphertexts.powers(numerator)
        except ValueError:
            raise EncryptionError("a number that is not a ciphertext of this key cannot be multiplied") from None
        return self._like(layout, self.count, terms, powers)

    def settled(self) -> CipherVector:
        """Return the vector with ``additions`` set to one.

        The algorithm must know that the sum lies in the range of a fresh vector, as a dual variable does after a
        feasible step. This cannot be checked here. Without this call, the count would grow from round to round.
        """
        whole = self.ciphertexts.take(range(len(self.ciphertexts)))
        return self._like(self.layout, self.count, [1] * len(whole), whole)

    def to_wire(self) -> Ciphertexts:
        """Return the serialised form of the vector, for messages and files."""
        width = self.key.ciphertext_bytes
        return Ciphertexts(
            key_id=self.key.id,
            layout=self.layout,
            count=self.count,
            additions=self.additions,
            ciphertext_bytes=width,
            data=self.ciphertexts.to_bytes(width),
        )

    @classmethod
    def from_wire(cls, wire: Ciphertexts, key: PublicKey) -> CipherVector:
        """Return the vector of an untrusted serialised form; raise the errors of :func:`check_received`."""
        check_received(wire, key)
        return cls.from_checked(wire, key)

    @classmethod
    def from_checked(cls, wire: Ciphertexts, key: PublicKey) -> CipherVector:
        """Return the vector of a serialised form that has passed :func:`check_received`, which takes twice as long."""
        numbers = residues(key.backend).read(key, wire.data)
        return cls(key, wire.layout, wire.count, wire.additions, numbers)

    def _like(self, layout: Layout, count: int, terms: list[int], ciphertexts: Residues) -> CipherVector:
        """Return a vector of the given ciphertexts under this vector's key, without validation."""
        vector = CipherVector.__new__(CipherVector)
        vector.key, vector.layout, vector.count = self.key, layout, count
        vector.ciphertexts, vector._terms = ciphertexts, terms
        return vector

    def _places(self, indices: Sequence[int] | Indices) -> list[int]:
        places = np.asarray(indices, np.int64).reshape(-1)
        outside = (places < 0) | (places >= len(self.ciphertexts))
        if outside.any():
            raise EncryptionError(
                f"position {places[outside][0]} is outside of the vector, which has {len(self.ciphertexts)} ciphertexts"
            )
        found: list[int] = places.tolist()
        return found

    def _partners(self, indices: Sequence[int] | Indices, other: CipherVector) -> list[int]:
        """Return the positions for the ciphertexts of another vector, after checking that it is of the same kind."""
        places = self._places(indices)
        self._check_same_kind(other)
        if len(places) != len(other.ciphertexts):
            raise EncryptionError(
                f"{len(other.ciphertexts)} ciphertexts given for {len(places)} positions; expected as many"
            )
        return places

    def _check_same_kind(self, other: CipherVector) -> None:
        if self.key != other.key:
            raise EncryptionError(
                f"an encrypted vector of the key {self.key.fingerprint} and one of the key {other.key.fingerprint} "
                "cannot be added; give all clients the same file of secrets"
            )
        if self.layout != other.layout:
            raise EncryptionError(
                f"encrypted vectors of different layouts cannot be added: {self.layout}; and {other.layout}"
            )


def _checked(terms: list[int], layout: Layout) -> list[int]:
    """Return the numbers of additions, or raise an ``EncryptionError`` if slots have no room for them."""
    most = max(terms, default=0)
    if most > layout.max_additions or min(terms, default=0) < 0:
        raise EncryptionError(
            f"a sum of {most} encrypted vectors may overflow, because slots of {layout.slot_bits} bits hold at "
            f"most {layout.max_additions} values of {layout.value_bits} bits; use a layout for more additions"
        )
    return terms


def check_received(wire: Ciphertexts, key: PublicKey) -> None:
    """Check that a received vector is a valid one under a key.

    Every ciphertext must be a unit modulo ``n^2``: in ``1 .. n^2 - 1``, with no factor in common with ``n``.

    Raises
    ------
    PayloadError
        If the vector is under another key, its numbers are inconsistent, or one of them is no ciphertext.
    """
    if wire.key_id != key.id:
        raise PayloadError(
            f"the ciphertexts have the key {bytes(wire.key_id).hex()}, expected {key.fingerprint}; give all "
            "clients the same file of secrets"
        )
    wire.check()
    if wire.ciphertext_bytes != key.ciphertext_bytes:
        raise PayloadError(
            f"the ciphertexts have {wire.ciphertext_bytes} bytes each, but those of this key have "
            f"{key.ciphertext_bytes}"
        )
    if len(wire.data) != wire.size:
        raise PayloadError(f"the ciphertexts have {len(wire.data)} bytes in all, expected {wire.size}")
    try:
        wire.layout.check_fits(key)
    except EncryptionError as error:
        raise PayloadError(f"the layout of the ciphertexts is invalid: {error}") from None
    limit = key.n_squared
    numbers = big_endian(wire.data, wire.ciphertext_bytes)
    for place, number in enumerate(numbers):
        if not 0 < number < limit:
            raise PayloadError(f"the ciphertext at position {place} is out of range; expected 1 to n^2 - 1")
    if (bad := without_inverse(numbers, key)) is not None:
        raise PayloadError(f"the number at position {bad} is not a ciphertext, because it shares a factor with n")
