"""Kinds of values in messages: dense arrays, :class:`SparseVector`, :class:`Ciphertexts`, and scalars."""

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

MEMORY_ALIGNMENT = 16
"""Bytes to which a received body is aligned in memory, as NumPy's own arrays are.

OpenBLAS's dot products for the oldest processors (Prescott, Core2) add in an order that depends on the address, and
end the process at odd addresses.
"""

DTYPES: Mapping[pb.DType.ValueType, np.dtype[Any]] = {
    pb.FLOAT64: np.dtype("<f8"),
    pb.FLOAT32: np.dtype("<f4"),
    pb.FLOAT16: np.dtype("<f2"),
    pb.INT64: np.dtype("<i8"),
    pb.UINT8: np.dtype("u1"),
    pb.BOOL: np.dtype("?"),
}
"""Data types of arrays by the protocol's codes."""


def aligned(length: int) -> int:
    """Return the number of bytes that an array of ``length`` bytes takes in a body, with padding."""
    return length + -length % ALIGNMENT


class Entries(NamedTuple):
    """Stored entries of an array of any kind.

    Attributes
    ----------
    values
        Stored entries, of the array's shape if all are stored, else of shape (k,).
    shape
        Shape of the array.
    indices
        Positions of the stored entries, shape (k,), strictly increasing; ``None`` if all are stored.
    """

    values: Array
    shape: tuple[int, ...]
    indices: Indices | None = None

    def dense(self) -> Array:
        """Return the array, in which entries that are not stored are zero."""
        if self.indices is None:
            return self.values
        out = np.zeros(self.shape, self.values.dtype)
        out[self.indices] = self.values
        return out


@dataclass(frozen=True)
class SparseVector:
    """A vector that stores some of its entries. All others are zero.

    It saves bytes in messages. A stored entry may be zero, too: ``indices`` alone determine the entries that are
    stored.

    Parameters
    ----------
    indices : Indices, shape (k,)
        Positions of the stored entries, int64, strictly increasing, within 0..size-1.
    values : Array, shape (k,)
        Stored entries, of dtype float64, float32, float16, int64, uint8 or bool.
    size : int
        Length of the vector.
    seed : int, optional
        Seed within 0..2^64-1 that ``indices`` follow from, given ``size`` and k (docs/specifications/fedpdm.md, section
        2.5). It is sent in place of the indices, in 8 bytes. The caller must ensure that they agree. ``None`` (the
        default) sends the indices themselves.

    Examples
    --------
    >>> import fenchel
    >>> import numpy as np
    >>> gradient = fenchel.SparseVector(np.array([1, 3]), np.array([0.5, -2.0]), size=5)
    >>> gradient.dense()
    array([ 0. ,  0.5,  0. , -2. ,  0. ])
    """

    indices: Indices
    values: Array
    size: int
    seed: int | None = None

    def dense(self) -> Array:
        """Return the vector with its zeros.

        Returns
        -------
        Array, shape (size,)
            New array, in the dtype of ``values``.
        """
        return Entries(self.values, (self.size,), self.indices).dense()


Value: TypeAlias = Array | SparseVector | Ciphertexts | Scalar
Values: TypeAlias = Mapping[str, Value]
"""Content of a message: arrays, sparse vectors, encrypted vectors, numbers and texts by name."""
