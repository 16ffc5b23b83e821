"""Partitions of both samples and features: rectangular grids, and random divisions of each sample's values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from fenchel.common.arrays import Indices
from fenchel.common.data.shares import by_owner, deal
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import GridPartition, RaggedPartition


@dataclass(frozen=True)
class ClientBlock:
    """Part of a data set that one client holds.

    Attributes
    ----------
    samples
        Positions of the samples, shape (n,), increasing.
    features
        Positions of the features, shape (m,), increasing; ``None`` for all features.
    cells
        Positions of the values among the stored values of the CSR matrix, increasing; ``None`` for the whole rectangle
        of samples and features.
    """

    samples: Indices
    features: Indices | None = None
    cells: Indices | None = None


def grid(
    samples: int, clients: int, seed: int, settings: GridPartition, *, features: int, bias: bool = False
) -> list[ClientBlock]:
    """Divide samples into K random groups and features into Q groups, so that client q K + k holds cell (k, q).

    Parameters
    ----------
    samples
        Number of training samples.
    features
        Number of features, with the bias.
    bias
        True if the last feature is the bias.

    Raises
    ------
    DataError
        If there is not one client per cell, or there are fewer samples or features than groups, or the layout
        ``quadrants`` does not fit the features.
    """
    _check_groups(settings, clients, samples)
    if settings.feature_groups > features:
        raise DataError(
            f"{settings.feature_groups} given, but the data set has {features} features; use at most {features}",
            key="data.partition.feature_groups",
        )
    rows = deal(samples, settings.sample_groups, generator(seed, "partition", "grid"))
    if settings.layout == "quadrants":
        columns = _quadrants(features - bias, features)
    else:
        columns = np.array_split(np.arange(features), settings.feature_groups)
    return [ClientBlock(mine, block) for block in columns for mine in rows]


def _quadrants(pixels: int, features: int) -> list[Indices]:
    """Return the features of the four quarters of a square image, row by row. The last one includes any bias."""
    side = round(pixels**0.5)
    if side * side != pixels or side < 2:
        raise DataError(
            f"quadrants need a square image, but the data set has {pixels} features; use layout: contiguous",
            key="data.partition.layout",
        )
    row, column = np.divmod(np.arange(pixels), side)
    quadrant = np.full(features, 3)
    quadrant[:pixels] = 2 * (row >= side // 2) + (column >= side // 2)
    return by_owner(quadrant, 4)


def ragged(matrix: scipy.sparse.csr_array, clients: int, seed: int, settings: RaggedPartition) -> list[ClientBlock]:
    """Divide samples into K random groups, and each sample's non-zero values among the Q clients of its group.

    The numbers of values of a sample on two clients differ by at most one, and random clients get the surplus. Client
    k Q + q is the q-th of group k. A client holds all samples of its group, and every feature of which it has a value.
    A sample with fewer than Q values is a row of zeros on some clients.

    Raises
    ------
    DataError
        If there are not K Q clients, or fewer samples than groups, or if a client would hold no value.
    """
    _check_groups(settings, clients, int(matrix.shape[0]))
    rng = generator(seed, "partition", "ragged")
    groups = deal(int(matrix.shape[0]), settings.sample_groups, rng)
    group_of_row = np.empty(matrix.shape[0], np.int64)
    for number, rows in enumerate(groups):
        group_of_row[rows] = number
    values = np.diff(matrix.indptr)
    row = np.repeat(np.arange(matrix.shape[0]), values)
    # Keys with the row in the high bits and random low bits sort by row, and at random within a row.
    shuffled = np.argsort((row << 32) | rng.integers(1 << 32, size=matrix.nnz))
    rank = np.empty(matrix.nnz, np.int64)
    rank[shuffled] = np.arange(matrix.nnz) - np.repeat(np.cumsum(values) - values, values)
    first = rng.integers(settings.feature_groups, size=matrix.shape[0])
    owner = group_of_row[row] * settings.feature_groups + (rank + first[row]) % settings.feature_groups
    cells = by_owner(owner, clients)
    if empty := sum(len(mine) == 0 for mine in cells):
        raise DataError(
            f"{empty} of {clients} clients would hold no value, because the data set has only {matrix.nnz} "
            "non-zero values; use fewer sample_groups or feature_groups",
            key="data.partition",
        )
    return [
        ClientBlock(groups[client // settings.feature_groups], np.unique(matrix.indices[mine]).astype(np.int64), mine)
        for client, mine in enumerate(cells)
    ]


def _check_groups(settings: GridPartition | RaggedPartition, clients: int, samples: int) -> None:
    needed = settings.sample_groups * settings.feature_groups
    if clients != needed:
        raise DataError(
            f"{settings.sample_groups} sample groups x {settings.feature_groups} feature groups make {needed} "
            f"blocks, but there are {clients} clients; change sample_groups, feature_groups or clients so that "
            "each client has one block",
            key="data.partition",
        )
    if settings.sample_groups > samples:
        raise DataError(
            f"{settings.sample_groups} given, but the data set has {samples} training samples; use at most {samples}",
            key="data.partition.sample_groups",
        )
