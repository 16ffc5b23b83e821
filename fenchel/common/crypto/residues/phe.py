"""Residues of the library phe, a widely used implementation of Paillier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from gmpy2 import mpz
from phe.paillier import EncryptedNumber, PaillierPublicKey

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.interface import Residues


class PheResidues(Residues):
    """Residues as encrypted numbers of phe, whose plaintexts are packed integers."""

    def __init__(self, key: PaillierPublicKey, numbers: list[EncryptedNumber]) -> None:
        self._key = key
        self._numbers = numbers

    @classmethod
    def of(cls, key: PublicKey, numbers: Sequence[mpz]) -> Self:
        """Return the residues of numbers in ``0 .. n^2 - 1``."""
        public = PaillierPublicKey(key.n)
        return cls(public, [EncryptedNumber(public, int(number)) for number in numbers])

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[mpz]:
        # By default phe would blind each sum anew, which costs as much as an encryption. A sum is as secret as any
        # of its terms, which were blinded when they were encrypted.
        return (mpz(number.ciphertext(be_secure=False)) for number in self._numbers)

    def take(self, places: Sequence[int]) -> Self:
        """Return the numbers at the given positions."""
        return type(self)(self._key, [self._numbers[place] for place in places])

    def put(self, places: Sequence[int], other: Self) -> None:
        """Replace the numbers at the given positions."""
        for place, number in zip(places, other._numbers, strict=True):
            self._numbers[place] = number

    def products(self, other: Self) -> Self:
        """Return the elementwise products with another sequence of the same length."""
        return type(self)(self._key, [a + b for a, b in zip(self._numbers, other._numbers, strict=True)])

    def powers(self, exponent: int) -> Self:
        """Return the powers of all numbers."""
        try:
            return type(self)(self._key, [number * exponent for number in self._numbers])
        except ZeroDivisionError as error:
            raise ValueError(str(error)) from None
