"""Eight numbers at a time, by the compiled kernel ``_ifma``, where the processor has AVX-512 IFMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Self

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.interface import Residues, big_endian

try:
    from fenchel.common.crypto.residues import _ifma
except ImportError:  # no compiler was there, or the machine is none of x86-64
    _ifma = None  # type: ignore[assignment]

_DIGIT = 52
_LANES = 8
_SPARE_BITS = 6  # halves of numbers are kept below 8m, and R is at least 64m
_LONGEST_WINDOW = 5
_TABLE_WINDOW = 6
_PLACES = np.asarray([1 << place for place in range(_TABLE_WINDOW)], np.uint8)

Row = NDArray[np.uint64]
"""Numbers in groups of eight, digit by digit: shape (groups, 2 digits, 8); what the last group has too many is 0."""


def problem() -> str | None:
    """Return why this machine cannot compute so, or ``None``."""
    if _ifma is None:
        return (
            "this installation of Fenchel has no compiled part (a wheel for x86-64 has, or one made with a C compiler)"
        )
    return None if _ifma.is_available() else "this processor has no AVX-512 IFMA"


class SquareModulus:
    """Arithmetic modulo the square of an odd number m, on rows of numbers."""

    def __init__(self, m: mpz) -> None:
        self.value = m * m
        self.width = (self.value.bit_length() + 7) // 8
        digits = -(-(m.bit_length() + _SPARE_BITS) // _DIGIT)
        self.digits = digits + digits % 2
        r = mpz(1) << (_DIGIT * self.digits)
        powers = (r**exponent % self.value for exponent in (1, 2, 3))
        constants = [m, (1 - r) % m, *(half for power in powers for half in (power % m, power // m))]
        width = (m.bit_length() + 7) // 8
        self._kernel = _ifma.SquareModulus(self.digits, b"".join(each.to_bytes(width, "big") for each in constants))

    def read(self, data: bytes) -> Row:
        """Take numbers below the modulus, big-endian, ``width`` bytes each."""
        return self._row(self._kernel.read(data, self.width))

    def of(self, numbers: Sequence[mpz]) -> Row:
        """Take numbers below the modulus."""
        return self.read(b"".join(number.to_bytes(self.width, "big") for number in numbers))

    def write(self, row: Row, count: int, width: int | None = None) -> bytes:
        """Return the first numbers of a row, big-endian, of so many bytes each."""
        return self._kernel.write(row, count, width or self.width)

    def numbers(self, row: Row, count: int) -> list[mpz]:
        """Return the first numbers of a row."""
        return big_endian(self.write(row, count), self.width)

    def products(self, a: Row, b: Row) -> Row:
        """Return the products of numbers and their partners."""
        return self._row(self._kernel.products(a, b))

    def powers(self, a: Row, exponent: int) -> Row:
        """Return the powers of all numbers, in the same time for all exponents of the same length."""
        # A table of 2^bits powers pays for itself only where there are several digits.
        bits = min(_LONGEST_WINDOW, max(1, exponent.bit_length() // 20))
        places = range(0, max(exponent.bit_length(), 1), bits)
        windows = bytes((exponent >> place) & ((1 << bits) - 1) for place in reversed(places))
        return self._row(self._kernel.powers(a, windows, bits))

    def table(self, base: mpz, exponent_bits: int) -> bytes:
        """Return the powers of a number from which :meth:`fixed_powers` makes those of exponents of so many bits."""
        return self._kernel.table(self.of([base] * _LANES), -(-exponent_bits // _TABLE_WINDOW), _TABLE_WINDOW)

    def fixed_powers(self, table: bytes, exponents: Sequence[int]) -> Row:
        """Return powers of the number that a table is of; all exponents take the same time."""
        rows = len(table) // (2 * self.digits * 8 << _TABLE_WINDOW)
        width = -(-rows * _TABLE_WINDOW // 8)
        data = b"".join(exponent.to_bytes(width, "little") for exponent in exponents)
        bits = np.unpackbits(np.frombuffer(data, np.uint8).reshape(-1, width), axis=1, bitorder="little")
        digits = bits[:, : rows * _TABLE_WINDOW].reshape(-1, rows, _TABLE_WINDOW) @ _PLACES
        windows = np.zeros((-(-len(exponents) // _LANES) * _LANES, rows), np.uint8)
        windows[: len(exponents)] = digits
        windows = np.ascontiguousarray(windows.reshape(-1, _LANES, rows).swapaxes(1, 2))
        return self._row(self._kernel.fixed_powers(table, windows, _TABLE_WINDOW))

    def _row(self, data: bytes) -> Row:
        groups = len(data) // (2 * self.digits * _LANES * 8)
        return np.ndarray((groups, 2 * self.digits, _LANES), np.uint64, data)


@lru_cache(maxsize=8)
def _modulo(n: int) -> SquareModulus:
    return SquareModulus(mpz(n))


class IfmaResidues(Residues):
    """Numbers in the lanes of vectors. They stay in this form from one operation to the next."""

    def __init__(self, modulus: SquareModulus, row: Row, count: int) -> None:
        self._modulus = modulus
        self._row = row
        self._count = count

    @classmethod
    def of(cls, key: PublicKey, numbers: Sequence[mpz]) -> Self:
        """Take numbers in ``0 .. n^2 - 1``."""
        modulus = _modulo(key.n)
        return cls(modulus, modulus.of(numbers), len(numbers))

    @classmethod
    def read(cls, key: PublicKey, data: Buffer) -> Self:
        """Take numbers that lie one after the other, big-endian."""
        content, modulus = bytes(data), _modulo(key.n)
        if key.ciphertext_bytes != modulus.width:
            return super().read(key, data)
        return cls(modulus, modulus.read(content), len(content) // modulus.width)

    def to_bytes(self, width: int) -> bytes:
        """Return the numbers one after the other, big-endian."""
        return self._modulus.write(self._row, self._count, width)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[mpz]:
        return iter(self._modulus.numbers(self._row, self._count))

    def take(self, places: Sequence[int]) -> Self:
        """Return the numbers at some places."""
        found = np.zeros((-(-len(places) // _LANES), 2 * self._modulus.digits, _LANES), np.uint64)
        found[_at(np.arange(len(places)))] = self._row[_at(places)]
        return type(self)(self._modulus, found, len(places))

    def put(self, places: Sequence[int], other: Self) -> None:
        """Replace the numbers at some places."""
        row = self._row.copy() if not self._row.flags.writeable else self._row
        for place, number in zip(places, other._row[_at(np.arange(len(other)))], strict=True):  # the last one counts
            row[place // _LANES, :, place % _LANES] = number
        self._row = row

    def products(self, other: Self) -> Self:
        """Return the products of numbers and their partners."""
        if len(self) != len(other):
            raise ValueError(f"{len(self)} numbers have no partners among {len(other)}")
        return type(self)(self._modulus, self._modulus.products(self._row, other._row), self._count)

    def multiply_at(self, places: Sequence[int], other: Self) -> None:
        """Multiply the numbers at some places, in place."""
        if len(set(places)) < len(places):
            super().multiply_at(places, other)
        else:
            self.put(places, self.take(places).products(other))

    def powers(self, exponent: int) -> Self:
        """Return the powers of all numbers."""
        if exponent < 0:
            try:
                inverses = [gmpy2.invert(number, self._modulus.value) for number in self]
            except ZeroDivisionError as error:
                raise ValueError(str(error)) from None
            return type(self)(self._modulus, self._modulus.of(inverses), self._count).powers(-exponent)
        return type(self)(self._modulus, self._modulus.powers(self._row, exponent), self._count)


def _at(places: Any) -> tuple[Any, slice, Any]:
    """Return the index of numbers in a row: shape (places, digits)."""
    found = np.asarray(places, np.int64)
    return found // _LANES, slice(None), found % _LANES
