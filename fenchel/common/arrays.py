"""Names for the arrays that algorithms pass around."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.floating[Any]]
"""A flat vector of real numbers, shape (d,): a model, a dual variable, a gradient."""

Indices: TypeAlias = NDArray[np.int64]
"""Positions, shape (n,), int64."""

Dense: TypeAlias = NDArray[np.floating[Any]]
"""Samples by features, shape (n, features)."""

Matrix: TypeAlias = "Dense | sp.csr_array"
"""Samples by features, shape (n, features), dense or in compressed sparse rows."""


def squared_norms(matrix: Matrix) -> Vector:
    """Return the squared Euclidean norm of each row, shape (n,)."""
    norms: Any = (
        np.einsum("ij,ij->i", matrix, matrix)
        if isinstance(matrix, np.ndarray)
        else np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()
    )
    result: Vector = norms
    return result
