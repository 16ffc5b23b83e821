"""Holdouts: samples of a client that are used for evaluation only."""

from __future__ import annotations

import numpy as np

from fenchel.common.arrays import Indices
from fenchel.common.data.shard import Shard
from fenchel.common.randomness import generator


def kept(rows: Indices, holdout: float, seed: int, client: int, clients: int) -> Indices:
    """Draw the training samples of a client at random. Its other samples are its holdout.

    Parameters
    ----------
    rows
        Positions of all samples of the client, shape (n,).
    holdout
        Fraction of samples in the holdout (``data.holdout``). At least one training sample remains.
    seed
        Seed of the run.
    client, clients
        Number of the client, from 0, and number of clients.

    Returns
    -------
    Indices
        Positions of the training samples, shape (k,), increasing; ``rows`` itself without a holdout.
    """
    held_out = round(holdout * len(rows))
    if held_out == 0:
        return rows
    # Rounding must not leave a client without training samples.
    held_out = min(held_out, len(rows) - 1)
    rng = generator(seed, "holdout", client, clients)
    trained_on: Indices = np.sort(rng.permutation(rows)[held_out:])
    return trained_on


def divide_own(shard: Shard, holdout: float, seed: int, client: int, clients: int) -> tuple[Shard, Shard | None]:
    """Divide the samples of a client's own file into training samples and holdout.

    Parameters
    ----------
    shard
        Samples of the file.
    holdout
        Fraction of samples in the holdout (``data.holdout``).
    seed
        Seed of the run.
    client, clients
        Number of the client, from 0, and number of clients.

    Returns
    -------
    tuple[Shard, Shard | None]
        Training samples, and the holdout if there is one.
    """
    rows = np.arange(shard.samples)
    trained_on = kept(rows, holdout, seed, client, clients)
    if len(trained_on) == len(rows):
        return shard, None
    return shard.take(trained_on), shard.take(np.setdiff1d(rows, trained_on, assume_unique=True))
