"""The kinds of values that travel: dense arrays, :class:`SparseVector`, :class:`Ciphertexts`, and scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import PayloadError
from fenchel.proto import fenchel_pb2 as pb

Scalar: TypeAlias = bool | int | float | str
Array: TypeAlias = NDArray[Any]
Buffer: TypeAlias = bytes | memoryview

ALIGNMENT = 8
"""Bytes to which each array in a body is aligned."""
KEY_ID_BYTES = 16
LARGEST = (1 << 63) - 1
"""What a size, an index or an integer may be."""

DTYPES: Mapping[pb.DType.ValueType, np.dtype[Any]] = {
    pb.FLOAT64: np.dtype("<f8"),
    pb.FLOAT32: np.dtype("<f4"),
    pb.FLOAT16: np.dtype("<f2"),
    pb.INT64: np.dtype("<i8"),
    pb.UINT8: np.dtype("u1"),
    pb.BOOL: np.dtype("?"),
}
"""What arrays may hold."""


@dataclass(frozen=True)
class SparseVector:
    """A vector of which some entries are given; the others are zero.

    An entry that is given may be zero, too: which ones are given is said by the indices alone.

    Attributes
    ----------
    indices
        Shape (k,), int64, strictly increasing, within 0..size-1.
    values
        Shape (k,), any payload dtype.
    size
        Length of the vector.
    seed
        Promises that ``indices`` are :func:`fenchel.common.wire.index_sets.seeded_support` of this seed,
        ``size`` and k, so that 64 bits may travel in their place. Whoever receives indices as such finds
        ``None``.
    """

    indices: Indices
    values: Array
    size: int
    seed: int | None = None

    def dense(self) -> Array:
        """Return the vector with its zeros, shape (size,)."""
        out = np.zeros(self.size, self.values.dtype)
        out[self.indices] = self.values
        return out


@dataclass(frozen=True)
class Ciphertexts:
    """A vector under Paillier encryption, as it travels (:class:`fenchel.common.crypto.vector.CipherVector` computes).

    Attributes
    ----------
    key_id
        16 bytes that name the public key.
    layout
        How the values lie in the plaintexts.
    count
        How many values there are.
    additions
        How many fresh vectors were added up; 0 for the trivial encryption of zeros.
    ciphertext_bytes
        Length of one ciphertext.
    data
        ``layout.ciphertexts(count)`` ciphertexts one after the other, big-endian, ``ciphertext_bytes`` each.
    """

    key_id: bytes
    layout: Layout
    count: int
    additions: int
    ciphertext_bytes: int
    data: Buffer = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes that ``data`` must have."""
        return self.layout.ciphertexts(self.count) * self.ciphertext_bytes

    def problem(self) -> str | None:
        """Say how these numbers contradict each other, or return ``None``. The data is not looked at."""
        layout = self.layout
        if len(self.key_id) != KEY_ID_BYTES:
            return f"name their key by {len(self.key_id)} bytes, not {KEY_ID_BYTES}"
        # A ciphertext is a number modulo n^2, and n is two bits longer than all slots together.
        if self.ciphertext_bytes * 8 < 2 * layout.slot_bits * layout.slots:
            return f"of {self.ciphertext_bytes} bytes have no room for {layout}"
        most = min(layout.max_additions, LARGEST)
        if not 0 <= self.additions <= most:
            return f"are declared to be a sum of {self.additions} vectors, and {layout} have room for {most}"
        if not 0 <= self.count <= LARGEST or self.size > LARGEST:
            return f"hold {self.count} values, which is more than there can be"
        return None


Value: TypeAlias = Array | SparseVector | Ciphertexts | Scalar
Values: TypeAlias = Mapping[str, Value]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the sparse vector that an error is about."""
    try:
        yield
    except PayloadError as error:
        raise PayloadError(f"sparse vector {name!r}: {error}") from None
