"""The samples that a client holds back of its own, to test on."""

from __future__ import annotations

import numpy as np

from fenchel.common.arrays import Indices
from fenchel.common.data.shard import Shard
from fenchel.common.randomness import generator


def kept(rows: Indices, holdout: float, seed: int, client: int, clients: int) -> Indices:
    """Return the samples that a client trains on, when it holds some back.

    Parameters
    ----------
    rows
        Positions of all its samples, shape (n,).
    holdout
        ``data.holdout``: the part that it only tests on. One sample at least is left to train on.
    seed
        ``settings.seed``.
    client, clients
        Number of the client, from 0, and of all.

    Returns
    -------
    Indices
        Shape (k,), increasing; ``rows`` as they are if nothing is held back.
    """
    held_out = round(holdout * len(rows))
    if held_out == 0:
        return rows
    # Rounding must not leave a client without samples to train on.
    held_out = min(held_out, len(rows) - 1)
    rng = generator(seed, "holdout", client, clients)
    trained_on: Indices = np.sort(rng.permutation(rows)[held_out:])
    return trained_on


def divide_own(shard: Shard, holdout: float, seed: int, client: int, clients: int) -> tuple[Shard, Shard | None]:
    """Divide the samples of a client that brings its own file to train and to test on.

    Parameters
    ----------
    seed
        ``settings.seed``.
    client, clients
        Number of the client, from 0, and of all.

    Returns
    -------
    tuple[Shard, Shard | None]
        The others; ``None`` if there are none.
    """
    rows = np.arange(shard.samples)
    trained_on = kept(rows, holdout, seed, client, clients)
    if len(trained_on) == len(rows):
        return shard, None
    return shard.take(trained_on), shard.take(np.setdiff1d(rows, trained_on, assume_unique=True))
