"""Types of the arrays that algorithms use, and basic functions of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.errors import NotFiniteError

if TYPE_CHECKING:
    import scipy
    from typing_extensions import TypeIs

Array: TypeAlias = NDArray[Any]
"""An array of any shape and dtype."""

Vector: TypeAlias = NDArray[np.floating[Any]]
"""Flat vector of floating-point numbers, shape (d,): a model, a gradient or a dual variable."""

Indices: TypeAlias = NDArray[np.int64]
"""Positions of samples or coordinates, counted from 0: int64, shape (n,)."""

Dense: TypeAlias = NDArray[np.floating[Any]]
"""Samples by features, shape (n, features)."""

Matrix: TypeAlias = "Dense | scipy.sparse.csr_array"
"""Feature matrix with one sample a row, shape (n, features): a NumPy array, or compressed sparse rows of SciPy."""


def is_sparse(features: Array | scipy.sparse.csr_array) -> TypeIs[scipy.sparse.csr_array]:
    """Return whether a feature matrix is sparse. Dense features need no import of ``scipy.sparse``, which is slow."""
    return not isinstance(features, np.ndarray)


def is_finite(array: Array) -> bool:
    """Return whether the sum of squares of a floating-point array is finite.

    True implies that all entries are finite. False does not imply the contrary, because the sum may overflow.
    """
    flat = array.reshape(-1)
    # np.vdot, unlike np.dot, gives no warning if the sum overflows.
    return math.isfinite(np.vdot(flat, flat))


def require_finite(array: Array) -> None:
    """Check that all entries of an array are finite.

    One fast pass decides the usual case. Only if its sum overflows are the entries checked one by one.

    Raises
    ------
    NotFiniteError
        With the number of entries that are not finite and the position of the first.
    """
    if array.dtype.kind != "f" or is_finite(array):
        return
    flat = array.reshape(-1)
    bad = np.flatnonzero(~np.isfinite(flat))
    if len(bad):
        raise NotFiniteError(f"{len(bad)} values are not finite, the first at position {bad[0]}")


def squared_norms(matrix: Matrix) -> Vector:
    """Return the squared Euclidean norm of each row, shape (n,)."""
    norms: Any = (
        np.einsum("ij,ij->i", matrix, matrix)
        if isinstance(matrix, np.ndarray)
        else np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()
    )
    result: Vector = norms
    return result
