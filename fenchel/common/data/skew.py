"""Partitions in which clients differ in size and in the proportions of their classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.data.shares import apportion, by_owner
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import DirichletPartition, ZipfPartition


def dirichlet(labels: NDArray[Any], clients: int, seed: int, settings: DirichletPartition) -> list[Indices]:
    """Divide each class among the clients in proportions from a symmetric Dirichlet distribution.

    Each client with fewer than ``min_samples`` samples then gets random samples, one by one, from the client that is
    currently the largest. With many clients and a small ``alpha``, random proportions alone would rarely give every
    client the minimum. Raise a ``DataError`` if there are too few samples.
    """
    if clients * settings.min_samples > len(labels):
        raise DataError(
            f"{clients} clients of at least {settings.min_samples} samples need {clients * settings.min_samples}, "
            f"but there are {len(labels)} training samples; use at most {len(labels) // clients}",
            key="data.partition.min_samples",
        )
    rng = generator(seed, "partition", "dirichlet")
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = np.rint(np.cumsum(_proportions(rng, settings.alpha, clients)) * len(rows)).astype(np.int64)
        ends[-1] = len(rows)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    _fill_up(owner, clients, settings.min_samples, rng)
    return by_owner(owner, clients)


def _fill_up(owner: Indices, clients: int, least: int, rng: np.random.Generator) -> None:
    """Change ``owner``, shape (n,), to move random samples from the largest clients to those below ``least``."""
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            donor = int(np.argmax(sizes))
            owner[rng.choice(np.flatnonzero(owner == donor))] = client
            sizes[donor] -= 1
            sizes[client] += 1


def zipf(labels: NDArray[Any], clients: int, seed: int, settings: ZipfPartition) -> list[Indices]:
    """Give client i (from 1) about n i^-z / sum_j j^-z samples, with class proportions of its own.

    This is the partition of DRDM's experiments. Sizes are rounded by largest remainder, and every client gets at least
    one sample. Each client draws class proportions q_i from a symmetric Dirichlet distribution, and then labels from
    q_i. It gets random samples with these labels, without replacement. If a class is exhausted, q_i is renormalised
    over the other classes. Without ``alpha``, clients get random samples of all classes.
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
        mine = [pool[rest - n : rest] for pool, rest, n in zip(pools, left, taken, strict=True)]
        held.append(np.sort(np.concatenate(mine)))
        left = left - taken
    return held


def _draw_labels(
    rng: np.random.Generator, size: int, proportions: NDArray[np.float64], left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw ``size`` labels, at most ``left`` of each class, and return the number of each, shape (classes,)."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        # Redrawing labels of an exhausted class from the other classes is equivalent to drawing labels one by one.
        open_classes = taken < left
        weights = np.where(open_classes, proportions, 0.0)
        if weights.sum() <= 0:
            weights = open_classes.astype(np.float64)
        drawn = rng.multinomial(missing, weights / weights.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def _proportions(rng: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = rng.dirichlet(np.full(size, alpha))
    return drawn
