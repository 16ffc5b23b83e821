"""The kinds of values that travel: dense arrays, :class:`SparseVector`, :class:`Ciphertexts`, and scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.errors import PayloadError
from fenchel.proto import fenchel_pb2 as pb

Scalar: TypeAlias = bool | int | float | str
Array: TypeAlias = NDArray[Any]

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


Value: TypeAlias = Array | SparseVector | Ciphertexts | Scalar
Values: TypeAlias = Mapping[str, Value]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the sparse vector that an error is about."""
    try:
        yield
    except PayloadError as error:
        raise PayloadError(f"sparse vector {name!r}: {error}") from None
