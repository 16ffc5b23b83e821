"""Partition of CODASCA's experiments, with positive and negative classes of its own for each client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator


def class_groups(labels: NDArray[Any], positive: NDArray[np.bool_], clients: int, seed: int) -> list[Indices]:
    """Deal positive and negative classes to the clients in turn (docs/specifications/codasca.md, section 4.1).

    The positive and the negative classes are shuffled, and the j-th goes to client j modulo K, as in the authors'
    program (section 5.11, item 11). No class is then on two clients, and the numbers of classes differ by at most one.
    If there are only C < K classes of one kind, client k shares class k modulo C with others. The class is divided at
    random into parts whose sizes differ by at most one.

    Parameters
    ----------
    labels
        Class indices, shape (n,).
    positive
        Mask of positive samples, shape (n,).
    clients
        Number K of clients.
    seed
        Seed of the run.

    Returns
    -------
    list[Indices]
        Positions of each client's samples, increasing.

    Raises
    ------
    DataError
        If there are no positive or no negative samples, or a class has fewer samples than holders.
    """
    rng = generator(seed, "partition", "class-groups")
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for side, rows in (("positive", np.flatnonzero(positive)), ("negative", np.flatnonzero(~positive))):
        if len(rows) == 0:
            raise DataError(
                f"no training sample has a {side} class; change objective.positive, or use more samples",
                key="data.partition",
            )
        present = rng.permutation(np.unique(labels[rows]))
        for position, label in enumerate(present):
            mine = rng.permutation(rows[labels[rows] == label])
            # The holder is the position modulo K; with fewer classes than clients, the holders are every C-th client.
            holders = range(position, clients, len(present)) if len(present) < clients else (position % clients,)
            if len(mine) < len(holders):
                raise DataError(
                    f"{clients} clients share {len(present)} {side} classes, so {len(holders)} clients hold class "
                    f"{label}, but it has only {len(mine)} training samples; use fewer clients",
                    key="data.partition",
                )
            for client, piece in zip(holders, np.array_split(mine, len(holders)), strict=True):
                held[client].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in held]
