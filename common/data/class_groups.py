"""The partition of CODASCA's experiments: a group of positive and a group of negative classes for each client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import ClassGroupsPartition


def class_groups(
    labels: NDArray[Any], positive: NDArray[np.bool_], clients: int, seed: int, settings: ClassGroupsPartition
) -> list[Indices]:
    """Deal positive and negative classes to the clients in turn (docs/specifications/codasca.md, section 4.1).

    The classes of either side are shuffled, and the j-th goes to client j modulo K, as in the authors'
    program (section 5.11, item 11). So no class is on two clients, and the numbers of classes differ by one
    at most. If a side has C < K classes, client k shares the class k modulo C with others, in random parts of
    equal size: then classes are on several clients, samples never.

    labels: shape (n,), class indices.
    positive: which samples are positive, shape (n,).
    settings: order of dealing, and perhaps shares in which positive samples are dealt instead, whatever their class.

    Returns: Positions of each client's samples, increasing.
    """
    rng = generator(seed, "partition", "class-groups")
    shares = settings.positive_shares
    if shares is not None and len(shares) != clients:
        raise DataError(
            f"{len(shares)} numbers given for {clients} clients; expected one for each",
            key="data.partition.positive_shares",
        )
    sides = {"positive": np.flatnonzero(positive), "negative": np.flatnonzero(~positive)}
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for side, rows in sides.items():
        if len(rows) == 0:
            raise DataError(
                f"no training sample is {side}; change objective.positive, or use more samples", key="data.partition"
            )
        if side == "positive" and shares is not None:
            pieces = _by_shares(rows, shares, rng)
        else:
            pieces = _by_class(rows, labels, side, clients, settings, rng)
        for client, piece in pieces:
            held[client].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in held]


def _by_shares(rows: Indices, shares: Sequence[float], rng: np.random.Generator) -> Iterable[tuple[int, Indices]]:
    """Deal the samples of a side in proportion to shares, whatever their class; yield clients with their samples."""
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * len(rows)).astype(np.int64)
    return enumerate(np.split(rng.permutation(rows), ends[:-1]))


def _by_class(
    rows: Indices,
    labels: NDArray[Any],
    side: str,
    clients: int,
    settings: ClassGroupsPartition,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Indices]]:
    """Deal the classes of a side in turn; yield clients with samples of one class."""
    present = np.unique(labels[rows])
    if settings.order == "shuffled":
        present = rng.permutation(present)
    for position, label in enumerate(present):
        mine = rng.permutation(rows[labels[rows] == label])
        # One holder, the position modulo K; or, with fewer classes than clients, every C-th client.
        holders = range(position, clients, len(present)) if len(present) < clients else (position % clients,)
        if len(mine) < len(holders):
            raise DataError(
                f"{clients} clients share {len(present)} {side} classes, so class {label} has "
                f"{len(holders)} holders, but only {len(mine)} training samples; use fewer clients",
                key="data.partition",
            )
        yield from zip(holders, np.array_split(mine, len(holders)), strict=True)
