"""Euclidean projections: of models onto the set that they are confined to, of weights onto the simplex."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.settings.constraint import BallConstraint, BoxConstraint, ConstraintSettings


def onto(constraint: ConstraintSettings, w: Vector) -> Vector:
    """Return the point of a convex set that is nearest to ``w``, shape (d,); ``w`` itself if it lies in it."""
    if isinstance(constraint, BallConstraint):
        norm = float(np.linalg.norm(w))
        return w if norm <= constraint.radius else w * w.dtype.type(constraint.radius / norm)
    if isinstance(constraint, BoxConstraint):
        return np.clip(w, constraint.lower, constraint.upper)
    return w


def onto_simplex(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest point with ``lambda_i >= 0`` and ``sum_i lambda_i = 1``, shape (N,).

    By sorting, in O(N log N) (docs/specifications/drdm.md, section 2.3). Adding a constant to all entries changes
    nothing.

    Parameters
    ----------
    x
        Shape (N,), finite.
    """
    if not np.isfinite(x).all():
        raise ValueError(
            "only finite numbers can be projected onto the simplex, but the clients' weights were moved by "
            f"{x[~np.isfinite(x)][0]}: the losses that they follow, or the step size of the weights, are too large"
        )
    shifted = x - x.max()  # without the shift, rounding of large entries could make the index set below empty
    descending = np.sort(shifted)[::-1]
    excess = np.cumsum(descending) - 1
    count = np.arange(1, x.size + 1)
    last = int(np.flatnonzero(descending - excess / count > 0)[-1])
    return np.maximum(shifted - excess[last] / (last + 1), 0.0)
