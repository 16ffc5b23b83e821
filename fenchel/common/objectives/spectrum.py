"""Largest eigenvalue of a data matrix, which determines the smoothness of an objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Matrix, is_sparse
from fenchel.common.randomness import generator

EXACT_UP_TO = 1000
"""Order of the largest matrix whose eigenvalue is computed exactly, in a fraction of a second."""


def largest_eigenvalue(features: Matrix) -> float:
    """Return an upper bound on the largest eigenvalue of ``X^T X / n``.

    Parameters
    ----------
    features
        Data matrix X, shape (n, m).

    Returns
    -------
    float
        Upper bound, 0 for an empty matrix. If n or m is at most ``EXACT_UP_TO``, the bound is the eigenvalue up to
        rounding. Otherwise, it is about one per cent above the eigenvalue, and at most the mean squared row norm, which
        is the trace.
    """
    samples: int
    columns: int
    samples, columns = features.shape
    if not samples or not columns:
        return 0.0
    if min(samples, columns) <= EXACT_UP_TO:
        return _exact(features) / samples * (1 + 1e-12)
    entries = features.data if is_sparse(features) else features
    trace = float(np.sum(np.square(entries), dtype=np.float64))
    # Lanczos's estimate converges from below, so a margin of 1 % makes it an upper bound.
    return min(1.01 * _lanczos(features), trace) / samples


def _exact(features: Matrix) -> float:
    """Return the largest eigenvalue of X^T X.

    It is computed from the smaller of X^T X and X X^T, whose non-zero eigenvalues are equal.
    """
    x: Any = features.astype(np.float64)
    gram: Any = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    dense: NDArray[np.float64] = gram if isinstance(gram, np.ndarray) else gram.toarray()
    last = dense.shape[0] - 1
    return max(float(scipy.linalg.eigvalsh(dense, subset_by_index=(last, last))[0]), 0.0)


def _lanczos(features: Matrix) -> float:
    """Return a lower estimate of the largest eigenvalue of X^T X, with a relative error of about 0.1 %."""
    from scipy.sparse.linalg import LinearOperator, eigsh  # late import, because few processes need it

    columns = features.shape[1]

    def apply(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return ((features @ v.astype(features.dtype)) @ features).astype(np.float64)

    operator = LinearOperator((columns, columns), matvec=apply, dtype=np.float64)
    start = generator(0, "largest eigenvalue").standard_normal((columns,))
    values, _ = eigsh(operator, k=1, tol=1e-3, v0=start)
    return float(values[0])
