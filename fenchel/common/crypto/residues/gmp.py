"""Residues of Fenchel's own implementation with the GNU multiple precision library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import gmpy2
from gmpy2 import mpz

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.interface import Residues


class GmpResidues(Residues):
    """Residues as numbers of GMP."""

    def __init__(self, modulus: mpz, numbers: list[mpz]) -> None:
        self._modulus = modulus
        self._numbers = numbers

    @classmethod
    def of(cls, key: PublicKey, numbers: Sequence[mpz]) -> Self:
        """Return the residues of numbers in ``0 .. n^2 - 1``."""
        return cls(key.n_squared, list(numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[mpz]:
        return iter(self._numbers)

    def take(self, places: Sequence[int]) -> Self:
        """Return the numbers at the given positions."""
        return type(self)(self._modulus, [self._numbers[place] for place in places])

    def put(self, places: Sequence[int], other: Self) -> None:
        """Replace the numbers at the given positions."""
        for place, number in zip(places, other._numbers, strict=True):
            self._numbers[place] = number

    def products(self, other: Self) -> Self:
        """Return the elementwise products with another sequence of the same length."""
        modulus = self._modulus
        return type(self)(modulus, [a * b % modulus for a, b in zip(self._numbers, other._numbers, strict=True)])

    def multiply_at(self, places: Sequence[int], other: Self) -> None:
        """Multiply the numbers at the given positions, in place."""
        for place, number in zip(places, other._numbers, strict=True):
            self._numbers[place] = self._numbers[place] * number % self._modulus

    def powers(self, exponent: int) -> Self:
        """Return the powers of all numbers."""
        try:
            return type(self)(self._modulus, [gmpy2.powmod(number, exponent, self._modulus) for number in self])
        except ZeroDivisionError as error:  # some versions of gmpy2 raise this in place of a ValueError
            raise ValueError(str(error)) from None
