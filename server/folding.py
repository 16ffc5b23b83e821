"""Sums and means of the clients' replies, always in the order of client ids.

Floating-point sums depend on the order of their terms; a fixed order makes a run reproducible.
"""

from __future__ import annotations

import numpy as np

from common.payload import Array

_BLOCK = 1 << 16  # entries; a block of two arrays stays in the cache


def accumulate(total: Array | None, array: Array, weight: float = 1.0) -> Array:
    """Return ``total + weight * array``, in the dtype of ``array``, reusing ``total``'s memory.

    ``None`` stands for zero. A block at a time, so that no temporary array of full length is needed.
    """
    if total is None:
        return array.copy() if weight == 1.0 else np.asarray(array * array.dtype.type(weight))
    if weight == 1.0:
        total += array
        return total
    flat, addend = total.reshape(-1), array.reshape(-1)
    factor = array.dtype.type(weight)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        flat[block] += factor * addend[block]
    return total


def divided(total: Array, divisor: float) -> Array:
    """Return ``total / divisor``, reusing ``total``'s memory."""
    np.divide(total, total.dtype.type(divisor), out=total)
    return total
