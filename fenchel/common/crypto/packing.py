"""Packing of many numbers in one plaintext.

A plaintext of a 3072-bit key has room for 76 numbers of 40 bits. Values are quantised with a common scale,
``v_i = round(2^f x_i)``, and placed side by side in slots of ``w`` bits:

    ``P = sum_i v_i 2^(w i)``

The ``v_i`` are signed, so a negative one borrows from the next slot. Adding ``2^(w-1)`` to every slot before unpacking
cancels all borrows. Sums of plaintexts are therefore exact sums in every slot, as long as no sum leaves
``-2^(w-1) < v < 2^(w-1)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.errors import EncryptionError

_WORD = 64
_WIDEST = 1000  # limit on the bits of a slot or a fraction, so that the scale does not overflow a float64

_Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """Layout of values in plaintexts. Only vectors of the same layout can be added.

    Attributes
    ----------
    slot_bits
        Width ``w`` of a slot in bits.
    fraction_bits
        Number of bits after the point: values are multiples of ``2^-fraction_bits``.
    slots
        Number of values in a plaintext.
    value_bits
        Number of bits of a fresh value, whose magnitude is at most ``2^value_bits - 1`` in units of
        ``2^-fraction_bits``. The remaining bits of a slot are headroom for sums.
    """

    slot_bits: int
    fraction_bits: int
    slots: int
    value_bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.value_bits < self.slot_bits <= _WIDEST:
            raise EncryptionError(
                f"values of {self.value_bits} bits do not fit slots of {self.slot_bits} bits; expected values of at "
                f"least 1 bit in slots that are longer, and of at most {_WIDEST} bits"
            )
        if not 0 <= self.fraction_bits <= _WIDEST:
            raise EncryptionError(f"the values have {self.fraction_bits} fraction bits; expected 0 to {_WIDEST}")
        if self.slots < 1:
            raise EncryptionError(f"the layout has {self.slots} slots in a ciphertext; expected at least one")

    @classmethod
    def fit(cls, key_bits: int, fraction_bits: int, largest: float, additions: int, slots: int | None = None) -> Layout:
        """Return the layout with the narrowest slots for a range of values and a number of additions.

        Parameters
        ----------
        key_bits
            Length of the key in bits.
        fraction_bits
            Number of bits after the point.
        largest
            Largest magnitude of a fresh value.
        additions
            Largest number of fresh vectors in a sum.
        slots
            Number of values in a ciphertext; by default as many as the key has room for.

        Raises
        ------
        EncryptionError
            If an argument is out of range, or the key is too short.
        """
        if not (0 < largest < float("inf")):
            raise EncryptionError(f"the largest magnitude to encrypt is {largest}; expected a positive, finite number")
        if additions < 1:
            raise EncryptionError(f"the layout allows {additions} additions; expected at least one")
        if not 0 <= fraction_bits <= _WIDEST:
            raise EncryptionError(f"the values have {fraction_bits} fraction bits; expected 0 to {_WIDEST}")
        value_bits = max(1, round(Fraction(largest) * (1 << fraction_bits)).bit_length())
        slot_bits = (additions * ((1 << value_bits) - 1)).bit_length() + 1
        room = (key_bits - 2) // slot_bits
        if room < (slots or 1):
            raise EncryptionError(
                f"{slots or 1} values up to {largest:g} with {fraction_bits} fraction bits and {additions} "
                f"additions need {slots or 1} slots of {slot_bits} bits, but a key of {key_bits} bits has space "
                f"for {room}. Use a longer key, a smaller range, fewer bits or fewer additions"
            )
        return cls(slot_bits, fraction_bits, room if slots is None else slots, value_bits)

    def rescaled(self, shift: int) -> Layout:
        """Return a layout with the same slots and range of real numbers, and ``shift`` more bits after the point."""
        return replace(self, fraction_bits=self.fraction_bits + shift, value_bits=self.value_bits + shift)

    @property
    def largest_fresh(self) -> int:
        """Largest magnitude of a fresh value, in multiples of ``2^-fraction_bits``."""
        return (1 << self.value_bits) - 1

    @property
    def max_additions(self) -> int:
        """Largest number of fresh vectors whose sum cannot overflow a slot."""
        return ((1 << (self.slot_bits - 1)) - 1) // self.largest_fresh

    @property
    def largest(self) -> float:
        """Largest magnitude of a fresh value."""
        return float(self.largest_fresh) * 2.0**-self.fraction_bits

    def ciphertexts(self, count: int) -> int:
        """Return the number of ciphertexts for ``count`` values."""
        return -(-count // self.slots)

    def check_fits(self, key: PublicKey) -> None:
        """Raise an ``EncryptionError`` unless plaintexts of this layout fit a key."""
        if self.slot_bits * self.slots > key.bits - 2:
            raise EncryptionError(
                f"{self.slots} slots of {self.slot_bits} bits do not fit a key of {key.bits} bits, which has space "
                f"for {(key.bits - 2) // self.slot_bits}; use a longer key or fewer slots"
            )

    def __str__(self) -> str:
        return (
            f"{self.slots} slots of {self.slot_bits} bits, values of {self.value_bits} bits, "
            f"{self.fraction_bits} of them after the point"
        )

    @cached_property
    def _bias(self) -> mpz:
        """Plaintext with ``2^(w-1)`` in every slot."""
        ones = ((mpz(1) << (self.slot_bits * self.slots)) - 1) // ((mpz(1) << self.slot_bits) - 1)
        return ones << (self.slot_bits - 1)

    def quantized(self, values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the values in multiples of ``2^-fraction_bits``, rounded to the nearest integer, ties to even.

        Parameters
        ----------
        values
            Values, shape (count,), float64.

        Raises
        ------
        EncryptionError
            If a value is not finite, or too large for the layout.
        """
        exact = np.asarray(values, np.float64)
        if exact.ndim != 1:
            raise EncryptionError(f"an array of shape {exact.shape} cannot be packed; expected a vector")
        with np.errstate(over="ignore"):
            scaled = exact * 2.0**self.fraction_bits
        np.rint(scaled, out=scaled)
        # nan is out of range, too, because a comparison with nan is false.
        fits = np.abs(scaled) < 2.0**self.value_bits
        if not fits.all():
            at = int(np.flatnonzero(~fits)[0])
            if not np.isfinite(exact[at]):
                raise EncryptionError(
                    f"the value at position {at} is {exact[at]}; only finite numbers can be encrypted"
                )
            raise EncryptionError(
                f"the value at position {at} is {exact[at]:g}, but its magnitude must be below "
                f"{2.0 ** (self.value_bits - self.fraction_bits):g} for encryption; raise this range in the "
                "settings if the value is right"
            )
        return scaled

    def pack(self, values: NDArray[np.floating[Any]]) -> list[mpz]:
        """Return the plaintexts of a vector.

        Parameters
        ----------
        values
            Values, shape (count,), float64.

        Raises
        ------
        EncryptionError
            If a value is not finite, or too large for the layout.
        """
        whole = self.quantized(values)
        rows = self.ciphertexts(len(whole))
        if self.slot_bits > _WORD:
            numbers = [int(value) for value in whole]
            slots = (numbers[start : start + self.slots] for start in range(0, len(numbers), self.slots))
            return [sum((mpz(v) << (self.slot_bits * i) for i, v in enumerate(row)), mpz(0)) for row in slots]
        fields = np.zeros(rows * self.slots, np.int64)
        fields[: len(whole)] = whole  # exact, as all values are integers below 2^63
        lifted = fields.view(np.uint64) + np.uint64(1 << (self.slot_bits - 1))
        words = _joined(lifted.reshape(rows, self.slots), self.slot_bits)
        width = words.shape[1] * 8
        content = words.tobytes()
        bias = self._bias
        return [
            mpz.from_bytes(content[start : start + width], "little") - bias for start in range(0, len(content), width)
        ]

    def unpack(
        self, plaintexts: Sequence[mpz], count: int, n: int, additions: int | None = None
    ) -> NDArray[np.float64]:
        """Return the values in plaintexts, shape (count,), float64.

        Parameters
        ----------
        plaintexts
            Integers modulo ``n``.
        count
            Number of values.
        n
            Modulus of the plaintexts.
        additions
            Number of fresh vectors of which the plaintexts are the sum; by default the largest that fits.

        Raises
        ------
        EncryptionError
            If the number of plaintexts is wrong, or a value exceeds every sum of that many vectors.
        """
        if len(plaintexts) != self.ciphertexts(count):
            raise EncryptionError(
                f"{len(plaintexts)} plaintexts given for {count} values in {self.slots} slots each; expected "
                f"{self.ciphertexts(count)}"
            )
        lifted = [(plaintext + self._bias) % n for plaintext in plaintexts]
        for at, number in enumerate(lifted):
            if number.bit_length() > self.slot_bits * self.slots:
                raise EncryptionError(
                    f"ciphertext {at} does not hold {self.slots} slots of {self.slot_bits} bits; either a sum has "
                    "overflowed, or the ciphertext has another layout or key"
                )
        most = self.max_additions if additions is None else min(additions, self.max_additions)
        limit = most * self.largest_fresh
        if self.slot_bits > _WORD:
            numbers = [self._slots_of(number) for number in lifted]
            flat = [value for row in numbers for value in row]
            beyond = [at for at, value in enumerate(flat) if abs(value) > (limit if at < count else 0)]
            whole = np.array([float(value) for value in flat[:count]], np.float64)
        else:
            row_words = -(-self.slot_bits * self.slots // _WORD)
            content = b"".join(number.to_bytes(row_words * 8, "little") for number in lifted)
            words = np.frombuffer(content, "<u8").reshape(len(lifted), row_words)
            fields = _cut(words, self.slot_bits, self.slots) - np.uint64(1 << (self.slot_bits - 1))
            signed = fields.reshape(-1).view(np.int64)
            outside = (signed > limit) | (signed < -limit)
            outside[count:] |= signed[count:] != 0
            beyond = np.flatnonzero(outside).tolist()
            whole = signed[:count].astype(np.float64)
        if beyond:
            raise EncryptionError(
                f"the number at position {beyond[0]} exceeds every sum of {most} vectors ({self}); either a sum "
                "has overflowed, or the ciphertext has another layout"
            )
        return whole * 2.0**-self.fraction_bits

    def _slots_of(self, number: mpz) -> list[int]:
        """Return the signed integers in a plaintext with added bias, for slots wider than a machine word."""
        mask, half = (mpz(1) << self.slot_bits) - 1, 1 << (self.slot_bits - 1)
        return [int((number >> (self.slot_bits * i)) & mask) - half for i in range(self.slots)]


def _joined(fields: _Words, width: int) -> _Words:
    """Return the concatenated fields of each row, ``width`` bits each, low bits first.

    Parameters
    ----------
    fields
        Unsigned integers below ``2^width``, shape (rows, slots), uint64.
    """
    slots = fields.shape[1]
    starts = np.arange(slots) * width
    word, shift = starts // _WORD, (starts % _WORD).astype(np.uint64)
    words = np.zeros((len(fields), -(-width * slots // _WORD)), "<u8")
    # A field is at most as wide as a word. So a field begins in each word but perhaps the last one, and at most one
    # field, the last that begins there, continues in the next word.
    first = np.flatnonzero(np.diff(word, prepend=-1))
    last = np.append(first[1:], slots) - 1
    words[:, : len(first)] = np.bitwise_or.reduceat(fields << shift, first, axis=1) if len(fields) else 0
    over = last[: words.shape[1] - 1]
    # Shifting by a whole word gives zero in NumPy, which is correct for a field that begins with the word.
    words[:, 1 : len(over) + 1] |= fields[:, over] >> (np.uint64(_WORD) - shift[over])
    return words


def _cut(words: _Words, width: int, slots: int) -> _Words:
    """Undo :func:`_joined`: return the fields, shape (rows, slots), uint64."""
    starts = np.arange(slots) * width
    word, shift = starts // _WORD, (starts % _WORD).astype(np.uint64)
    # The last word has no successor. The mask removes the excess bits.
    beyond = np.minimum(word + 1, words.shape[1] - 1)
    low = words[:, word] >> shift
    high = words[:, beyond] << (np.uint64(_WORD) - shift)
    return (low | high) & np.uint64((1 << width) - 1)
