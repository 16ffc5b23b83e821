"""Interface of implementations of Paillier for code that has the public key alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import gmpy2
from gmpy2 import mpz

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.crypto.public_key import PublicKey


class Residues(ABC):
    """Sequence of numbers modulo ``n^2``, in the form with which one backend computes.

    The product of two ciphertexts encrypts the sum of their plaintexts, and a power encrypts a multiple (Paillier 1999,
    section 8).
    """

    @classmethod
    @abstractmethod
    def of(cls, key: PublicKey, numbers: Sequence[mpz]) -> Self:
        """Return the residues of numbers in ``0 .. n^2 - 1``."""

    @classmethod
    def read(cls, key: PublicKey, data: Buffer) -> Self:
        """Return the residues of concatenated big-endian numbers, ``key.ciphertext_bytes`` each."""
        return cls.of(key, big_endian(data, key.ciphertext_bytes))

    def to_bytes(self, width: int) -> bytes:
        """Return the concatenated big-endian numbers, ``width`` bytes each."""
        return b"".join(number.to_bytes(width, "big") for number in self)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[mpz]: ...

    @abstractmethod
    def take(self, places: Sequence[int]) -> Self:
        """Return the numbers at the given positions, in the order of the positions."""

    @abstractmethod
    def put(self, places: Sequence[int], other: Self) -> None:
        """Replace the numbers at the given positions by those of another sequence, in place."""

    @abstractmethod
    def products(self, other: Self) -> Self:
        """Return the elementwise products with another sequence of the same length."""

    def multiply_at(self, places: Sequence[int], other: Self) -> None:
        """Multiply the numbers at the given positions, which may repeat, by those of another sequence, in place."""
        for each, place in enumerate(places):
            self.put([place], self.take([place]).products(other.take([each])))

    @abstractmethod
    def powers(self, exponent: int) -> Self:
        """Return the powers of all numbers.

        Raise ``ValueError`` if the exponent is negative and a number has no inverse.
        """


def big_endian(data: Buffer, width: int) -> list[mpz]:
    """Return the big-endian numbers of ``width`` bytes each in a buffer."""
    content = bytes(data)
    return [mpz.from_bytes(content[start : start + width], "big") for start in range(0, len(content), width)]


def without_inverse(numbers: Sequence[mpz], key: PublicKey) -> int | None:
    """Return the position of the first number that shares a factor with ``n``, or ``None`` if all have an inverse.

    No ciphertext shares a factor with ``n``. Every sender knows a number that does: ``n`` itself. Its decryption would
    reveal the private key.
    """
    n = key.modulus
    product = mpz(1)  # one gcd of the product takes a fifth of the time of individual gcds
    for number in numbers:
        product = product * number % n
    if gmpy2.gcd(product, n) == 1:
        return None
    return next(at for at, number in enumerate(numbers) if gmpy2.gcd(number, n) != 1)
