"""Index sets that server and clients derive without sending them (docs/specifications/fedpdm.md, section 2.5)."""

from __future__ import annotations

from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.sparsification import kept, public_top_k
from fenchel.common.randomness import public_seed
from fenchel.common.settings.uplink import UplinkSparsifier
from fenchel.common.wire.index_sets import seeded_support


def uplink_support(sparsifier: UplinkSparsifier, around: Vector, seed: int, t: int) -> Indices:
    """Return the coordinates that every client sends in round ``t``, shape (k,), increasing.

    Parameters
    ----------
    around
        Model that the server has broadcast, shape (d,).
    seed
        Seed of the run.
    """
    size = around.size
    own = public_seed(seed, "uplink support", t)
    if sparsifier.support == "public-top-k":
        return public_top_k(around, kept(sparsifier.keep, size), own)
    return seeded_support(own, size, kept(sparsifier.keep, size))


def downlink_seed(seed: int, t: int) -> int:
    """Return the seed of the random coordinates that the server sends in round ``t``."""
    return public_seed(seed, "downlink support", t)
