"""Who holds which samples and features: pure functions of labels, number of clients, seed and settings.

In every partition each sample (or each cell of a grid) has exactly one holder (``classes`` with a number of samples
and ``sites`` leave some out), every client holds something, and the positions of a part are sorted. The same arguments
give the same parts on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from common.arrays import Indices
from common.data.blocks import Part, grid, ragged
from common.data.class_groups import class_groups
from common.data.columns import listed
from common.data.shares import apportion, by_owner, deal, fill
from common.data.sites import sites
from common.errors import DataError
from common.randomness import generator
from common.settings.data import (
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
    matrix: Callable[[], sp.csr_array] | None = None,
    positive: NDArray[np.bool_] | None = None,
    holders: NDArray[Any] | None = None,
) -> list[Part]:
    """Divide a data set as the settings say.

    Parameters
    ----------
    labels
        Shape (n,), class indices or, for regression, numbers.
    clients
        Number of clients.
    seed
        ``settings.seed``.
    settings
        The kind of partition.
    features
        Number of features, with the bias.
    bias
        Whether the last feature is the bias.
    matrix
        Gives the prepared features, for ``ragged`` only.
    positive
        Which samples are positive, shape (n,), for ``class-groups`` and ``sites`` only.
    holders
        Who holds each sample, as the data file says, shape (n,), for ``column`` only.

    Returns
    -------
    list[Part]
        One part for each client.

    Raises
    ------
    DataError
        If a client would stay without samples or features.
    """
    if clients < 1:
        raise DataError(f"{clients} clients; expected at least 1")
    if clients > len(labels) and not isinstance(settings, GridPartition | RaggedPartition):
        raise DataError(
            f"data.partition: {len(labels)} training samples cannot be divided among {clients} clients; use "
            f"at most {len(labels)} clients or a larger data set"
        )
    match settings:
        case IidPartition():
            held = iid(labels, clients, seed)
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
            held = class_groups(labels, positive, clients, seed, settings)
        case SitesPartition():
            assert positive is not None, "sites needs to know what is positive"
            held = sites(positive, clients, seed, settings)
        case ColumnPartition():
            assert holders is not None, "column needs the column"
            held = by_column(holders, clients, settings)
        case GridPartition():
            return grid(len(labels), clients, seed, settings, features=features, bias=bias)
        case RaggedPartition():
            assert matrix is not None, "ragged needs the matrix"
            return ragged(matrix(), clients, seed, settings)
    return [Part(samples) for samples in held]


def iid(labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
    """Divide the samples at random into parts whose sizes differ by one at most."""
    return deal(len(labels), clients, generator(seed, "partition", "iid"))


def classes(labels: NDArray[Any], clients: int, seed: int, settings: ClassesPartition) -> list[Indices]:
    """Give every client samples of exactly ``per_client`` classes.

    The number of holders of a class is proportional to its size, so clients are of about equal size; its
    samples are divided evenly among its holders. If a client shall hold a given number of samples, the shares are
    as even as that allows.

    Raises
    ------
    DataError
        If there are fewer places than classes, or fewer classes or samples than a client shall hold.
    """
    rng = generator(seed, "partition", "classes")
    present, sizes = np.unique(labels, return_counts=True)
    places = clients * settings.per_client
    if settings.per_client > len(present):
        raise DataError(
            f"data.partition.per_client: {settings.per_client} given, but the training samples have only "
            f"{len(present)} classes; use at most {len(present)}"
        )
    if places < len(present):
        raise DataError(
            f"data.partition.per_client: {clients} clients of {settings.per_client} classes hold at most "
            f"{places} of {len(present)} classes, so samples would be lost; use at least "
            f"{-(-len(present) // clients)}"
        )
    most = np.minimum(sizes, clients)
    if settings.samples is not None:
        most = _room(settings, clients, sizes, most)
    if places > int(np.minimum(sizes, clients).sum()):
        raise DataError(
            f"data.partition.per_client: {clients} clients of {settings.per_client} classes need {places} "
            f"shares, but the classes with {sizes.min()} to {sizes.max()} training samples give only "
            f"{int(np.minimum(sizes, clients).sum())}; use fewer clients or classes per client"
        )
    holders = apportion(places, sizes, at_least=min(1, int(most.min())), at_most=most)
    owners: list[list[int]] = [[] for _ in present]
    left = holders.copy()
    for client in rng.permutation(clients):
        # The classes with the most places left, ties at random: so no client ever finds too few classes.
        for position in np.lexsort((rng.random(len(present)), -left))[: settings.per_client]:
            owners[position].append(int(client))
            left[position] -= 1
    shares = _equal_shares(settings, clients, owners, sizes)
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for position, label in enumerate(present):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if shares is None:
            pieces = np.array_split(rows, max(len(owners[position]), 1))
        else:
            pieces = np.split(rows, np.cumsum(shares[owners[position], position]))[:-1]
        for owner, share in zip(owners[position], pieces, strict=False):
            held[owner].append(share)
    return [_sorted(pieces) for pieces in held]


def _room(
    settings: ClassesPartition, clients: int, sizes: NDArray[np.int64], most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest number of holders of each class if each client holds ``settings.samples``."""
    assert settings.samples is not None
    if settings.per_client == 1:
        most = np.minimum(most, sizes // settings.samples)
    if clients * settings.samples > int(sizes.sum()) or clients * settings.per_client > int(most.sum()):
        raise _too_many(settings, clients, sizes)
    return most


def _equal_shares(
    settings: ClassesPartition, clients: int, owners: Sequence[Sequence[int]], sizes: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return samples of each class (columns) of each client (rows), or ``None`` where shares are just even."""
    if settings.samples is None:
        return None
    holds = np.zeros((clients, len(sizes)), bool)
    for position, of_class in enumerate(owners):
        holds[of_class, position] = True
    shares = fill(holds, settings.samples, sizes)
    if shares is None:
        raise _too_many(settings, clients, sizes)
    return shares


def _too_many(settings: ClassesPartition, clients: int, sizes: NDArray[np.int64]) -> DataError:
    return DataError(
        f"data.partition.samples: {clients} clients of {settings.per_client} classes cannot all hold "
        f"{settings.samples} of {sizes.sum()} training samples, in classes of {sizes.min()} to "
        f"{sizes.max()}; use fewer samples or clients"
    )


def label_shards(
    labels: NDArray[Any], clients: int, seed: int, settings: LabelShardsPartition
) -> list[Indices]:
    """Sort by label, cut into shards of equal size, deal ``per_client`` of them to each client.

    Raises
    ------
    DataError
        If there are fewer samples than shards.
    """
    shards = clients * settings.per_client
    if shards > len(labels):
        raise DataError(
            f"data.partition.per_client: {clients} clients of {settings.per_client} shards need {shards} "
            f"training samples, but there are {len(labels)}; use fewer clients or shards per client"
        )
    rng = generator(seed, "partition", "label-shards")
    # Shuffled before the stable sort, so that a shard is a random part of its class.
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, shards)
    dealt = rng.permutation(shards).reshape(clients, settings.per_client)
    return [_sorted([pieces[i] for i in mine]) for mine in dealt]


def dirichlet(labels: NDArray[Any], clients: int, seed: int, settings: DirichletPartition) -> list[Indices]:
    """Divide each class among the clients in proportions from a symmetric Dirichlet distribution.

    Clients with fewer than ``min_samples`` then get random samples of the client that is the largest at that
    moment. With many clients and a small ``alpha`` no draw would satisfy the minimum by itself.

    Raises
    ------
    DataError
        If there are fewer than ``clients * min_samples`` samples.
    """
    if clients * settings.min_samples > len(labels):
        raise DataError(
            f"data.partition.min_samples: {clients} clients of {settings.min_samples} samples need "
            f"{clients * settings.min_samples}, but there are {len(labels)} training samples; use at most "
            f"{len(labels) // clients}"
        )
    rng = generator(seed, "partition", "dirichlet")
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = np.rint(np.cumsum(_proportions(rng, settings.alpha, clients)) * len(rows)).astype(np.int64)
        ends[-1] = len(rows)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes < settings.min_samples):
        while sizes[client] < settings.min_samples:
            donor = int(np.argmax(sizes))
            owner[rng.choice(np.flatnonzero(owner == donor))] = client
            sizes[donor] -= 1
            sizes[client] += 1
    return by_owner(owner, clients)


def zipf(labels: NDArray[Any], clients: int, seed: int, settings: ZipfPartition) -> list[Indices]:
    """Give client i (from 1) about n i^-z / sum_j j^-z samples, with classes in proportions of its own.

    As DRDM's experiments combine both: sizes are rounded by largest remainder; each client draws class
    proportions q_i from a symmetric Dirichlet distribution, then its labels from q_i, and takes samples of
    these labels without replacement; a class that is exhausted is left out and q_i renormalised. Without
    ``alpha`` the samples are dealt at random. A client whose size rounds to zero gets one sample of the
    largest.
    """
    rng = generator(seed, "partition", "zipf")
    sizes = apportion(len(labels), np.arange(1, clients + 1) ** -settings.exponent, at_least=1)
    if settings.alpha is None:
        order = rng.permutation(len(labels))
        return [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
    present = np.unique(labels)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in present]
    left = np.array([len(pool) for pool in pools])
    held = []
    for size in sizes:
        taken = _draw_labels(rng, int(size), _proportions(rng, settings.alpha, len(present)), left)
        held.append(
            _sorted([pool[rest - n : rest] for pool, rest, n in zip(pools, left, taken, strict=True)])
        )
        left = left - taken
    return held


def _draw_labels(
    rng: np.random.Generator, size: int, proportions: NDArray[np.float64], left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw how many samples of each class to take, at most ``left`` of each; shape (classes,)."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        # Labels drawn of an exhausted class are drawn again from the others: the same as one at a time.
        open_classes = taken < left
        weights = np.where(open_classes, proportions, 0.0)
        if weights.sum() <= 0:
            weights = open_classes.astype(np.float64)
        drawn = rng.multinomial(missing, weights / weights.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def by_column(holders: NDArray[Any], clients: int, settings: ColumnPartition) -> list[Indices]:
    """Give client k the samples that the data file says the k-th holder has, holders in sorted order.

    Raises
    ------
    DataError
        If there are not as many holders as clients.
    """
    names, owner = np.unique(holders, return_inverse=True)
    if len(names) != clients:
        raise DataError(
            f"data.partition.column: column {settings.column!r} names {len(names)} holders of training samples "
            f"({listed([str(name) for name in names])}), but there are {clients} clients; expected as many"
        )
    return by_owner(owner, clients)


def _proportions(rng: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = rng.dirichlet(np.full(size, alpha))
    return drawn


def _sorted(pieces: Sequence[Indices]) -> Indices:
    return np.sort(np.concatenate(pieces))
