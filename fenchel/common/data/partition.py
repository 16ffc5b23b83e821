"""Partitions of samples and features, as pure functions of labels, number of clients, seed and settings.

Each sample has exactly one holder. In ``grid`` and ``ragged``, this applies to each value of a sample. With ``sites``,
and with ``classes`` and a number of samples, some samples have no holder. Every client holds at least one sample or
value, and positions are sorted. Equal arguments give equal parts on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.data.blocks import ClientBlock, grid, ragged
from fenchel.common.data.class_groups import class_groups
from fenchel.common.data.few_classes import classes, label_shards
from fenchel.common.data.samples import listed
from fenchel.common.data.shares import by_owner, deal
from fenchel.common.data.sites import sites
from fenchel.common.data.skew import dirichlet, zipf
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import (
    ClassesPartition,
    ClassGroupsPartition,
    ColumnPartition,
    DirichletPartition,
    GridPartition,
    IidPartition,
    LabelShardsPartition,
    Partition,
    RaggedPartition,
    SitesPartition,
    ZipfPartition,
)


def partition(
    labels: NDArray[Any],
    clients: int,
    seed: int,
    settings: Partition,
    *,
    features: int,
    bias: bool = False,
    matrix: Callable[[], scipy.sparse.csr_array] | None = None,
    positive: NDArray[np.bool_] | None = None,
    holders: NDArray[Any] | None = None,
) -> list[ClientBlock]:
    """Divide a data set among clients.

    Parameters
    ----------
    labels
        Labels of the training samples, shape (n,): class indices or, for regression, numbers.
    clients
        Number of clients.
    seed
        Seed of the run.
    settings
        Kind of partition with its parameters.
    features
        Number of features, with the bias.
    bias
        True if the last feature is the bias.
    matrix
        Function that returns the prepared features, for ``ragged`` only.
    positive
        Mask of positive samples, shape (n,), for ``class-groups`` and ``sites`` only.
    holders
        Holder of each sample in the data file, shape (n,), for ``column`` only.

    Returns
    -------
    list[ClientBlock]
        Part of each client.

    Raises
    ------
    DataError
        If the data set cannot be divided in this way.
    """
    if clients < 1:
        raise DataError(f"{clients} given; use at least 1", key="clients")
    if clients > len(labels) and not isinstance(settings, GridPartition | RaggedPartition):
        raise DataError(
            f"{len(labels)} training samples cannot be divided among {clients} clients; use at most {len(labels)} "
            "clients or a larger data set",
            key="data.partition",
        )
    match settings:
        case GridPartition():
            return grid(len(labels), clients, seed, settings, features=features, bias=bias)
        case RaggedPartition():
            assert matrix is not None, "ragged needs the matrix"
            return ragged(matrix(), clients, seed, settings)
        case IidPartition():
            held = deal(len(labels), clients, generator(seed, "partition", "iid"))
        case ClassesPartition():
            held = classes(labels, clients, seed, settings)
        case LabelShardsPartition():
            held = label_shards(labels, clients, seed, settings)
        case DirichletPartition():
            held = dirichlet(labels, clients, seed, settings)
        case ZipfPartition():
            held = zipf(labels, clients, seed, settings)
        case ClassGroupsPartition():
            assert positive is not None, "class-groups needs to know what is positive"
            held = class_groups(labels, positive, clients, seed)
        case SitesPartition():
            assert positive is not None, "sites needs to know what is positive"
            held = sites(positive, clients, seed, settings)
        case ColumnPartition():
            assert holders is not None, "column needs the column"
            held = by_column(holders, clients, settings)
    return [ClientBlock(samples) for samples in held]


def by_column(holders: NDArray[Any], clients: int, settings: ColumnPartition) -> list[Indices]:
    """Give client k the samples of the k-th of the sorted holders in the data file.

    Raise a ``DataError`` unless there is one client per holder.
    """
    names, owner = np.unique(holders, return_inverse=True)
    if len(names) != clients:
        raise DataError(
            f"the column names {len(names)} holders of training samples ({listed([str(name) for name in names])}), "
            f"but there are {clients} clients; set clients to {len(names)}",
            key="data.partition.column",
            column=settings.column,
        )
    return by_owner(owner, clients)
