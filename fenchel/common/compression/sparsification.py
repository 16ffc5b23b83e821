"""Choice of the entries of a vector that are sent: the largest, or entries that follow from public values.

The functions return an index set, indices in ascending order (docs/specifications/fedpdm.md, section 2.5). Server and
clients derive the same index set from public values without sending it. Index sets that follow from a seed alone are
in :mod:`fenchel.common.wire.index_sets`, as messages can contain their seed.
"""

from __future__ import annotations

import math

import numpy as np

from fenchel.common.arrays import Indices, Vector, require_finite
from fenchel.common.errors import NotFiniteError
from fenchel.common.randomness import public_seed
from fenchel.common.settings.uplink import UplinkSparsifier
from fenchel.common.wire.index_sets import seeded_support


def kept(alpha: float, size: int) -> int:
    """Return the number of entries that a fraction of a vector stands for: ``max(1, floor(alpha d + 0.5))``.

    Parameters
    ----------
    alpha
        Fraction to keep, in (0, 1].
    size
        Number d of entries of the vector, at least 1.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    if not 0 < alpha <= 1 or size < 1:
        raise ValueError(f"alpha is {alpha} and size is {size}; expected 0 < alpha <= 1 and at least 1 entry")
    return max(1, math.floor(alpha * size + 0.5))


def top_k(vector: Vector, k: int) -> Indices:
    """Return the indices of the k entries of largest magnitude. Of equal entries, those with lower indices are taken.

    It takes time O(d), by selection. The result is not private, because it depends on the data
    (docs/specifications/fedpdm.md, section 3.4).

    Parameters
    ----------
    vector
        Vector, shape (d,).
    k
        Number of entries, from 1 to d.

    Returns
    -------
    Indices
        Index set, shape (k,), strictly increasing.

    Raises
    ------
    ValueError
        If ``k`` is out of range.
    NotFiniteError
        If an entry is infinite or not a number.
    """
    _check_count(k, len(vector))
    if k == len(vector):
        _check_finite(vector)
        return np.arange(k)
    magnitudes = np.abs(vector)
    largest = np.partition(magnitudes, len(vector) - k)[len(vector) - k :]
    if not np.isfinite(largest).all():  # np.partition places nan last, so every nan is found here
        _check_finite(vector)
    smallest = largest[0]
    chosen = np.flatnonzero(magnitudes >= smallest)
    if len(chosen) > k:  # several entries tie for the smallest chosen magnitude
        ties = np.flatnonzero(magnitudes[chosen] == smallest)
        chosen = np.delete(chosen, ties[len(ties) - (len(chosen) - k) :])
    return chosen


def public_top_k(reference: Vector, k: int, seed: int) -> Indices:
    """Return an index set from public values: four fifths by the top-k rule on a public vector, the rest seeded.

    ``floor(0.8 k + 0.5)`` indices are those of :func:`top_k` of ``reference``. The others follow from the seed, so that
    entries which are zero now are sent at some time, too (docs/specifications/fedpdm.md, section 2.5).

    Parameters
    ----------
    reference
        Public vector, such as the broadcast model, shape (d,).
    k
        Number of entries, from 1 to d.
    seed
        Public seed within 0..2^64-1.

    Returns
    -------
    Indices
        Index set, shape (k,), strictly increasing.

    Raises
    ------
    ValueError
        If ``k`` is out of range.
    NotFiniteError
        If an entry is infinite or not a number.
    """
    _check_count(k, len(reference))
    first = top_k(reference, (8 * k + 5) // 10)
    others = seeded_support(seed, len(reference), k - len(first), excluded=first)
    return np.sort(np.concatenate([first, others]))


def uplink_support(sparsifier: UplinkSparsifier, around: Vector, seed: int, t: int) -> Indices:
    """Return the coordinates that every client sends in round ``t``, shape (k,), increasing.

    Parameters
    ----------
    around
        Model that the server has broadcast, shape (d,).
    seed
        Seed of the run.
    """
    own, count = public_seed(seed, "uplink support", t), kept(sparsifier.keep, around.size)
    if sparsifier.support == "public-top-k":
        return public_top_k(around, count, own)
    return seeded_support(own, around.size, count)


def downlink_seed(seed: int, t: int) -> int:
    """Return the seed of the random coordinates that the server sends in round ``t``."""
    return public_seed(seed, "downlink support", t)


def _check_count(k: int, size: int) -> None:
    if not 1 <= k <= size:
        raise ValueError(f"k is {k}; expected 1 to {size}, the number of entries of the vector")


def _check_finite(vector: Vector) -> None:
    try:
        require_finite(vector)
    except NotFiniteError as error:
        raise NotFiniteError(
            f"the vector whose largest entries are chosen: {error.problem}; if local training diverged, use a "
            "smaller step size"
        ) from None
