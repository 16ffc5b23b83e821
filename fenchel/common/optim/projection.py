"""Euclidean projections of models onto a constraint set, and of weights onto the simplex."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.settings.constraint import BallConstraint, BoxConstraint, ConstraintSettings


def onto(constraint: ConstraintSettings, w: Vector) -> Vector:
    """Return the projection of ``w``, shape (d,), onto a convex set.

    The result has the values of ``w`` if ``w`` is feasible, and may then be the same array.
    """
    if isinstance(constraint, BallConstraint):
        norm = float(np.linalg.norm(w))
        return w if norm <= constraint.radius else w * w.dtype.type(constraint.radius / norm)
    if isinstance(constraint, BoxConstraint):
        return np.clip(w, constraint.lower, constraint.upper)
    return w


def onto_simplex(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest point with ``lambda_i >= 0`` and ``sum_i lambda_i = 1``, shape (N,).

    The algorithm sorts the entries and takes O(N log N) time (docs/specifications/drdm.md, section 2.3). The projection
    does not change if a constant is added to all entries.

    Parameters
    ----------
    x
        Point to project, shape (N,).

    Raises
    ------
    ValueError
        If an entry is not finite.
    """
    if not np.isfinite(x).all():
        raise ValueError(
            f"a weight of the clients became {x[~np.isfinite(x)][0]} before the projection onto the simplex, expected "
            "a finite number. The clients' losses, or the step size of the weights (algorithm.dual_step_size), are "
            "too large"
        )
    shifted = x - x.max()  # without the shift, rounding of large entries could make the index set below empty
    descending = np.sort(shifted)[::-1]
    excess = np.cumsum(descending) - 1
    count = np.arange(1, x.size + 1)
    last = int(np.flatnonzero(descending - excess / count > 0)[-1])
    return np.maximum(shifted - excess[last] / (last + 1), 0.0)
