"""Partitions in which each client holds few classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.data.shares import apportion, fill
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import ClassesPartition, LabelShardsPartition


def classes(labels: NDArray[Any], clients: int, seed: int, settings: ClassesPartition) -> list[Indices]:
    """Give every client samples of exactly ``per_client`` classes.

    The number of holders of a class is proportional to its size, and its samples are divided evenly among them, so
    clients have about equal numbers of samples. If the settings give each client's number of samples, a client's
    samples are divided among its classes as evenly as possible, and the remaining samples have no holder.

    Returns
    -------
    list[Indices]
        Positions of each client's samples, increasing.

    Raises
    ------
    DataError
        If no such partition exists.
    """
    rng = generator(seed, "partition", "classes")
    present, sizes = np.unique(labels, return_counts=True)
    owners = _owners(settings.per_client, clients, _holders(settings, clients, sizes), rng)
    shares = None  # numbers of samples, shape (clients, classes), unless classes are divided evenly among holders
    if settings.samples is not None:
        holds = np.zeros((clients, len(sizes)), bool)
        for position, of_class in enumerate(owners):
            holds[of_class, position] = True
        shares = fill(holds, settings.samples, sizes)
        if shares is None:
            raise _too_many(settings, clients, sizes)
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for position, label in enumerate(present):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if shares is None:
            pieces = np.array_split(rows, max(len(owners[position]), 1))
        else:
            pieces = np.split(rows, np.cumsum(shares[owners[position], position]))[:-1]
        for owner, share in zip(owners[position], pieces, strict=False):
            held[owner].append(share)
    return [np.sort(np.concatenate(pieces)) for pieces in held]


def _holders(settings: ClassesPartition, clients: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each class's number of holders, in proportion to its size, shape (classes,), or raise a ``DataError``."""
    places = clients * settings.per_client
    if settings.per_client > len(sizes):
        raise DataError(
            f"{settings.per_client} given, but the training samples have only {len(sizes)} classes; use at most "
            f"{len(sizes)}",
            key="data.partition.per_client",
        )
    if places < len(sizes):
        raise DataError(
            f"{clients} clients of {settings.per_client} classes hold at most {places} of {len(sizes)} classes, so "
            f"samples would be lost; use at least {-(-len(sizes) // clients)}",
            key="data.partition.per_client",
        )
    most = np.minimum(sizes, clients)
    shares = int(most.sum())
    if settings.samples is not None:
        if settings.per_client == 1:
            most = np.minimum(most, sizes // settings.samples)
        if clients * settings.samples > int(sizes.sum()) or places > int(most.sum()):
            raise _too_many(settings, clients, sizes)
    if places > shares:
        raise DataError(
            f"{clients} clients of {settings.per_client} classes need {places} shares, but classes of "
            f"{sizes.min()} to {sizes.max()} training samples allow only {shares}; use fewer clients or classes "
            "per client",
            key="data.partition.per_client",
        )
    return apportion(places, sizes, at_least=min(1, int(most.min())), at_most=most)


def _owners(per_client: int, clients: int, holders: NDArray[np.int64], rng: np.random.Generator) -> list[list[int]]:
    """Return the random holders of each class, such that each client holds ``per_client`` classes."""
    owners: list[list[int]] = [[] for _ in holders]
    left = holders.copy()
    for client in rng.permutation(clients):
        # Choosing classes with the most places left, with random tie-breaking, leaves enough classes for every client.
        for position in np.lexsort((rng.random(len(holders)), -left))[:per_client]:
            owners[position].append(int(client))
            left[position] -= 1
    return owners


def _too_many(settings: ClassesPartition, clients: int, sizes: NDArray[np.int64]) -> DataError:
    return DataError(
        f"{clients} clients with {settings.per_client} classes and {settings.samples} samples each cannot be "
        f"formed from the {sizes.sum()} training samples, whose classes have {sizes.min()} to {sizes.max()}; use "
        "fewer samples or clients",
        key="data.partition.samples",
    )


def label_shards(labels: NDArray[Any], clients: int, seed: int, settings: LabelShardsPartition) -> list[Indices]:
    """Sort samples by label, cut them into shards, and deal ``per_client`` random shards to each client.

    Sizes of shards differ by at most one. Raise a ``DataError`` if there are fewer samples than shards.
    """
    shards = clients * settings.per_client
    if shards > len(labels):
        raise DataError(
            f"{clients} clients of {settings.per_client} shards need {shards} "
            f"training samples, but there are {len(labels)}; use fewer clients or shards per client",
            key="data.partition.per_client",
        )
    rng = generator(seed, "partition", "label-shards")
    # The shuffle before a stable sort makes each shard a random part of its class.
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, shards)
    dealt = rng.permutation(shards).reshape(clients, settings.per_client)
    return [np.sort(np.concatenate([pieces[shard] for shard in mine])) for mine in dealt]
