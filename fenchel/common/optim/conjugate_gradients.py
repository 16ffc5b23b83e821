"""Method of conjugate gradients (Nocedal and Wright, "Numerical Optimization", 2006, Algorithm 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fenchel.common.arrays import Vector


def conjugate_gradients(
    product: Callable[[Vector], Vector], b: Vector, *, tolerance: float, limit: int, flat: float = 0.0
) -> Vector:
    """Return a solution x with ``||A x - b|| <= tolerance``, shape (d,), or the iterate after ``limit`` products.

    The method stops at a direction whose curvature is at most ``flat``. It then returns the latest iterate, or b in the
    first step.

    Parameters
    ----------
    product
        Function that maps a vector v to ``A v``, both of shape (d,), for a symmetric matrix A.
    b
        Right-hand side, shape (d,).
    tolerance
        Largest norm of the residual of a solution.
    limit
        Largest number of products.
    flat
        Largest curvature ``v^T A v / ||v||^2`` that counts as zero.
    """
    x, residual, direction = np.zeros_like(b), b.copy(), b.copy()
    square = float(residual @ residual)
    for done in range(limit):
        if math.sqrt(square) <= tolerance:
            break
        image = product(direction)
        curvature = float(direction @ image)
        if curvature <= flat * float(direction @ direction):
            return x if done else direction
        length = square / curvature
        x += length * direction
        residual -= length * image
        square, before = float(residual @ residual), square
        direction *= square / before
        direction += residual
    return x
