"""Arithmetic for eight numbers at a time, by the compiled kernel ``_ifma`` on processors with AVX-512 IFMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Self

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.interface import Residues, big_endian
from fenchel.common.errors import SettingsError

try:
    from fenchel.common.crypto.residues import _ifma
except ImportError:  # the extension was not compiled, or the processor is not x86-64
    _ifma = None  # type: ignore[assignment]

_DIGIT = 52
_LANES = 8
_SPARE_BITS = 6  # bits by which R exceeds m: Montgomery products of factors below 8m need R >= 64m
_LONGEST_WINDOW = 5
_TABLE_WINDOW = 6

Row = NDArray[np.uint64]
"""Numbers in groups of eight, digit by digit, shape (groups, 2 digits, 8). Unused lanes have arbitrary contents."""


def is_available() -> bool:
    """Return whether this machine can use the kernel."""
    return _ifma is not None and _ifma.is_available()


def check_available() -> None:
    """Raise ``SettingsError`` if this machine cannot use the kernel."""
    if _ifma is None:
        raise SettingsError(
            "this installation of Fenchel lacks the compiled extension, which wheels for x86-64 contain, and builds "
            "with a C compiler"
        )
    if not _ifma.is_available():
        raise SettingsError("this processor has no AVX-512 IFMA")


class SquareModuli:
    """Arithmetic modulo the squares of one or two odd numbers, on rows of numbers in Montgomery form.

    Two moduli have half of the lanes each, so the owner of a key computes modulo p² and q² in one row. No branch and
    no memory address depends on an exponent.

    Parameters
    ----------
    *roots
        Numbers whose squares are the moduli, each at least 3.
    """

    def __init__(self, *roots: mpz) -> None:
        self._lanes = _LANES // len(roots)  # number of lanes for each modulus
        self.width = (max(roots).bit_length() * 2 + 7) // 8
        digits = -(-(max(roots).bit_length() + _SPARE_BITS) // _DIGIT)
        self.digits = digits + digits % 2
        r, width = mpz(1) << (_DIGIT * self.digits), (max(roots).bit_length() + 7) // 8
        constants = b""
        for m in roots:
            powers = (r % (m * m), r * r % (m * m))
            numbers = (m, (1 - r) % m, *(half for power in powers for half in (power % m, power // m)))
            constants += b"".join(number.to_bytes(width, "big") for number in numbers) * self._lanes
        assert _ifma is not None, "see check_available()"
        self._kernel = _ifma.SquareModuli(self.digits, constants)

    def read(self, data: bytes, width: int) -> Row:
        """Return a row of big-endian numbers of ``width`` bytes each, lane by lane, reduced by the moduli."""
        return self._row(self._kernel.read(data, width))

    def write(self, row: Row, count: int, width: int) -> bytes:
        """Return the first ``count`` numbers, big-endian, ``width`` bytes each."""
        return self._kernel.write(row, count, width)

    def of(self, *numbers: Sequence[mpz], width: int | None = None) -> Row:
        """Return a row of numbers, equally many for each modulus, of ``width`` bytes (default: as the modulus)."""
        width, lanes = width or self.width, self._lanes
        encoded = [[number.to_bytes(width, "big") for number in each] for each in numbers]
        for each in encoded:
            each += [bytes(width)] * (-len(each) % lanes)
        groups = range(0, len(encoded[0]), lanes)
        return self.read(b"".join(b"".join(each[at : at + lanes]) for at in groups for each in encoded), width)

    def numbers(self, row: Row, count: int) -> list[list[mpz]]:
        """Return the first ``count`` numbers of each modulus."""
        lanes = big_endian(self.write(row, len(row) * _LANES, self.width), self.width)
        starts = range(0, _LANES, self._lanes)
        return [
            [lanes[at // self._lanes * _LANES + start + at % self._lanes] for at in range(count)] for start in starts
        ]

    def products(self, a: Row, b: Row) -> Row:
        """Return the elementwise products of two rows."""
        return self._row(self._kernel.products(a, b))

    def powers(self, a: Row, *exponents: int) -> Row:
        """Return the powers of all numbers, with a non-negative exponent for each modulus."""
        length = max(exponent.bit_length() for exponent in exponents)
        # A table of 2^bits powers saves time only for exponents of several digits.
        bits = min(_LONGEST_WINDOW, max(1, length // 20))
        digits = _digits(exponents, bits, max(1, -(-length // bits)))
        lanes = digits.repeat(self._lanes, axis=0).T[::-1]
        return self._row(self._kernel.powers(a, lanes.tobytes(), bits))

    def table(self, first: mpz, second: mpz, exponent_bits: int) -> bytes:
        """Return the table of :meth:`fixed_powers`, for one base of each modulus."""
        bases = self.of([first] * self._lanes, [second] * self._lanes)
        return self._kernel.table(bases, -(-exponent_bits // _TABLE_WINDOW), _TABLE_WINDOW)

    def fixed_powers(self, table: bytes, first: Sequence[int], second: Sequence[int]) -> Row:
        """Return powers of the bases of a table, for equally many exponents of each modulus."""
        rows = len(table) // (4 * self.digits * 8 << _TABLE_WINDOW)
        digits = np.zeros((2, -(-len(first) // self._lanes) * self._lanes, rows), np.uint8)
        for mine, exponents in zip(digits, (first, second), strict=True):
            mine[: len(exponents)] = _digits(exponents, _TABLE_WINDOW, rows)
        lanes = digits.reshape(2, -1, self._lanes, rows).transpose(1, 3, 0, 2)  # group, row, modulus, lane
        return self._row(self._kernel.fixed_powers(table, lanes.tobytes(), _TABLE_WINDOW))

    def _row(self, data: bytes) -> Row:
        groups = len(data) // (2 * self.digits * _LANES * 8)
        return np.ndarray((groups, 2 * self.digits, _LANES), np.uint64, data)


def _digits(exponents: Sequence[int], bits: int, count: int) -> NDArray[np.uint8]:
    """Return the digits of ``bits`` bits, lowest first, shape (exponents, count), in constant time."""
    width = bits * count // 8 + 2
    data = b"".join(exponent.to_bytes(width, "little") for exponent in exponents)
    octets = np.frombuffer(data, np.uint8).reshape(-1, width).astype(np.uint16)
    byte, shift = np.divmod(np.arange(count, dtype=np.uint16) * bits, 8)
    return (((octets[:, byte] | octets[:, byte + 1] << 8) >> shift) & ((1 << bits) - 1)).astype(np.uint8)


@lru_cache(maxsize=8)
def _modulo(n: int) -> SquareModuli:
    return SquareModuli(mpz(n))


class IfmaResidues(Residues):
    """Residues in the rows of :class:`SquareModuli`, a form that they keep from one operation to the next."""

    def __init__(self, key: PublicKey, row: Row, count: int) -> None:
        self._key = key
        self._row = row
        self._count = count

    @classmethod
    def of(cls, key: PublicKey, numbers: Sequence[mpz]) -> Self:
        """Return the residues of numbers in ``0 .. n^2 - 1``."""
        return cls(key, _modulo(key.n).of(numbers), len(numbers))

    @classmethod
    def read(cls, key: PublicKey, data: Buffer) -> Self:
        """Return the residues of concatenated big-endian numbers."""
        width = key.ciphertext_bytes
        return cls(key, _modulo(key.n).read(bytes(data), width), len(data) // width)

    def to_bytes(self, width: int) -> bytes:
        """Return the concatenated big-endian numbers."""
        return _modulo(self._key.n).write(self._row, self._count, width)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[mpz]:
        return iter(_modulo(self._key.n).numbers(self._row, self._count)[0])

    def take(self, places: Sequence[int]) -> Self:
        """Return the numbers at the given positions."""
        found = np.zeros((-(-len(places) // _LANES), *self._row.shape[1:]), np.uint64)
        found[_at(range(len(places)))] = self._row[_at(places)]
        return type(self)(self._key, found, len(places))

    def put(self, places: Sequence[int], other: Self) -> None:
        """Replace the numbers at the given positions."""
        last = {place: at for at, place in enumerate(places)}  # the last occurrence of a repeated place counts
        row = self._row if self._row.flags.writeable else self._row.copy()
        row[_at(list(last))] = other._row[_at(list(last.values()))]
        self._row = row

    def products(self, other: Self) -> Self:
        """Return the elementwise products with another sequence of the same length."""
        return type(self)(self._key, _modulo(self._key.n).products(self._row, other._row), self._count)

    def multiply_at(self, places: Sequence[int], other: Self) -> None:
        """Multiply the numbers at the given positions, in place."""
        if len(set(places)) < len(places):
            super().multiply_at(places, other)
        else:
            self.put(places, self.take(places).products(other))

    def powers(self, exponent: int) -> Self:
        """Return the powers of all numbers."""
        if exponent < 0:
            try:
                inverses = [gmpy2.invert(number, self._key.n_squared) for number in self]
            except ZeroDivisionError as error:
                raise ValueError(str(error)) from None
            return self.of(self._key, inverses).powers(-exponent)
        return type(self)(self._key, _modulo(self._key.n).powers(self._row, exponent), self._count)


def _at(places: Sequence[int]) -> tuple[NDArray[np.int64], slice, NDArray[np.int64]]:
    """Return the NumPy index that selects numbers by their positions from a row, with shape (places, 2 digits)."""
    found = np.asarray(places, np.int64)
    return found // _LANES, slice(None), found % _LANES
