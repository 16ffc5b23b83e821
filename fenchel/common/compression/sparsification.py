"""Which entries of a vector are sent: the largest, or ones that follow from what is public.

All of them return a support, indices in ascending order (docs/specifications/fedpdm.md, section 2.5). Supports that
follow from a seed alone are in :mod:`fenchel.common.wire.index_sets`, because the wire knows them, too.
"""

from __future__ import annotations

import math

import numpy as np

from fenchel.common.arrays import Indices, Vector, require_finite
from fenchel.common.errors import NotFiniteError
from fenchel.common.wire.index_sets import seeded_support


def kept(alpha: float, size: int) -> int:
    """Return how many entries of a vector a fraction is: ``max(1, floor(alpha d + 0.5))``.

    Parameters
    ----------
    alpha
        Fraction kept, in (0, 1].
    size
        Entries of the vector (d), at least 1.
    """
    if not 0 < alpha <= 1 or size < 1:
        raise ValueError(f"no fraction of a vector: {alpha} of {size} entries")
    return max(1, math.floor(alpha * size + 0.5))


def top_k(vector: Vector, k: int) -> Indices:
    """Return the indices of the k entries of largest magnitude; of equal ones, the lower index wins.

    Time O(d), by selection. Not private: which entries are large follows from the data (docs/specifications/fedpdm.md,
    section 3.4).

    Parameters
    ----------
    vector
        Shape (d,).
    k
        1..d.

    Returns
    -------
    Indices
        Shape (k,), strictly increasing.
    """
    _check_count(k, len(vector))
    if k == len(vector):
        _check_finite(vector)
        return np.arange(k)
    magnitudes = np.abs(vector)
    largest = np.partition(magnitudes, len(vector) - k)[len(vector) - k :]
    if not np.isfinite(largest).all():  # nan counts as the largest of all, so it is found here
        _check_finite(vector)
    smallest = largest[0]
    chosen = np.flatnonzero(magnitudes >= smallest)
    if len(chosen) > k:  # more entries equal the smallest one than there is room for
        ties = np.flatnonzero(magnitudes[chosen] == smallest)
        chosen = np.delete(chosen, ties[len(ties) - (len(chosen) - k) :])
    return chosen


def public_top_k(reference: Vector, k: int, seed: int) -> Indices:
    """Return a support that everybody finds alike: four fifths by the top-k rule on a public vector, the rest seeded.

    ``floor(0.8 k + 0.5)`` indices are those of :func:`top_k` of ``reference``; the others follow from the
    seed, so that entries which are zero now have their turn (docs/specifications/fedpdm.md, section 2.5).

    Parameters
    ----------
    reference
        Shape (d,): what everybody knows, the model that was broadcast.
    k
        1..d.
    seed
        0..2^64-1, public.

    Returns
    -------
    Indices
        Shape (k,), strictly increasing.
    """
    _check_count(k, len(reference))
    first = top_k(reference, (8 * k + 5) // 10)
    others = seeded_support(seed, len(reference), k - len(first), excluded=first)
    return np.sort(np.concatenate([first, others]))


def _check_count(k: int, size: int) -> None:
    if not 1 <= k <= size:
        raise ValueError(f"{k} entries wanted of a vector of {size}")


def _check_finite(vector: Vector) -> None:
    try:
        require_finite(vector)
    except NotFiniteError as error:
        raise NotFiniteError(
            f"the vector to choose the largest entries of {error.problem}; did local training diverge?"
        ) from None
