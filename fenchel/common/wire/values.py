"""The kinds of values that travel: dense arrays, :class:`SparseVector`, :class:`Ciphertexts`, and scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fenchel.common.arrays import Array, Indices
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.proto import fenchel_pb2 as pb

Scalar: TypeAlias = bool | int | float | str

ALIGNMENT = 8
"""Bytes to which each array in a body is aligned."""

DTYPES: Mapping[pb.DType.ValueType, np.dtype[Any]] = {
    pb.FLOAT64: np.dtype("<f8"),
    pb.FLOAT32: np.dtype("<f4"),
    pb.FLOAT16: np.dtype("<f2"),
    pb.INT64: np.dtype("<i8"),
    pb.UINT8: np.dtype("u1"),
    pb.BOOL: np.dtype("?"),
}
"""What arrays may hold."""


def aligned(length: int) -> int:
    """Return how many bytes an array of so many takes in a body."""
    return length + -length % ALIGNMENT


class Entries(NamedTuple):
    """The entries that an array gives, whatever its kind."""

    values: Array  # of the array's shape where all are given, else shape (k,)
    shape: tuple[int, ...]  # of the array
    indices: Indices | None = None  # of those that are given, shape (k,), strictly increasing; ``None``: all

    def dense(self) -> Array:
        """Return the array; entries that are not given are zero."""
        if self.indices is None:
            return self.values
        out = np.zeros(self.shape, self.values.dtype)
        out[self.indices] = self.values
        return out


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
        Promises that ``indices`` are the seeded index set of this seed,
        ``size`` and k, so that 64 bits may travel in their place. Whoever receives indices as such finds
        ``None``.
    """

    indices: Indices
    values: Array
    size: int
    seed: int | None = None

    def dense(self) -> Array:
        """Return the vector with its zeros, shape (size,)."""
        return Entries(self.values, (self.size,), self.indices).dense()


Value: TypeAlias = Array | SparseVector | Ciphertexts | Scalar
Values: TypeAlias = Mapping[str, Value]
