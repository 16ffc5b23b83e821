"""Test sets of clients, with the class distribution of each client's training samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.data.shares import apportion
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator


def own_distribution(held: Sequence[NDArray[Any]], labels: NDArray[Any], seed: int) -> list[Indices]:
    """Divide a test set among clients by their training samples (docs/specifications/drdm.md, section 5.1).

    The size of a client's part is proportional to its number of training samples, and its classes have the proportions
    of these, both rounded by largest remainder. Each sample has one holder. Clients take their parts one after the
    other. If a class is used up, the proportions of the client's remaining classes are scaled up. A client whose
    classes are all used up gets fewer samples.

    Parameters
    ----------
    held
        Labels of the training samples of each client, shape (n_i,).
    labels
        Labels of the test set, shape (n,).
    seed
        Seed of the run.

    Returns
    -------
    list[Indices]
        Positions in the test set, increasing, at least one for each client.

    Raises
    ------
    DataError
        If there are fewer test samples than clients, or no sample of a client's classes is left.
    """
    present = np.unique(np.concatenate([*held, labels]))
    rng = generator(seed, "client tests")
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in present]
    left = np.array([len(pool) for pool in pools])
    sizes = np.array([len(mine) for mine in held])
    if len(labels) < len(held):
        raise DataError(
            f"{len(labels)} test samples cannot be divided among {len(held)} clients; use fewer clients, a larger "
            "test set, or data.holdout",
            key="data.client_tests",
        )
    tests = []
    for client, (size, mine) in enumerate(zip(apportion(len(labels), sizes, at_least=1), held, strict=True)):
        counts = np.bincount(np.searchsorted(present, mine), minlength=len(present))
        taken = _taken(int(size), counts, left)
        if not taken.any():
            raise DataError(
                "the test set has no sample of this client's classes left; use fewer clients, a larger test set, "
                "or data.holdout",
                key="data.client_tests",
                client=str(client),
            )
        rows = [pool[rest - n : rest] for pool, rest, n in zip(pools, left, taken, strict=True)]
        tests.append(np.sort(np.concatenate(rows)))
        left = left - taken
    return tests


def _taken(size: int, counts: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of samples to take from each class, shape (classes,), at most ``left`` and ``size`` in all."""
    taken = np.zeros_like(left)
    # The loop terminates, because each pass except the last exhausts a class.
    while (missing := size - int(taken.sum())) > 0:
        weights = np.where(taken < left, counts, 0)
        if not weights.any():
            break
        taken = np.minimum(taken + apportion(missing, weights), left)
    return taken
