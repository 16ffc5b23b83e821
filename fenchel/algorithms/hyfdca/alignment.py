"""Alignment of the clients' samples and features.

With hybrid data, each sample and each feature may be spread over several clients. The server defines a common order of
all samples, which indexes the dual variable ``alpha_0`` and the inner products, and a common order of all held
features, which indexes ``w_0``. The server knows samples only by keyed pseudonyms.

Samples with the same holders form a *group*, and a group is divided into *blocks*, each of which fits into one
ciphertext. Ciphertexts are added slot by slot, so a sample must have the same position in its block on all its holders.
The module itself neither encrypts nor sends anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.errors import ContradictingLabelsError, DataError, PayloadError

PSEUDONYM_BYTES = 32
"""Length of a sample's pseudonym in bytes."""

CELL_BYTES = 16
"""Length of a cell's pseudonym in bytes."""

LABEL_BYTES = 16
"""Length of a label's pseudonym in bytes."""


@dataclass(frozen=True)
class HeldEntries:
    """Samples and features of a client, as reported by the client.

    Attributes
    ----------
    samples
        Pseudonyms of the samples, shape (N_k, 32), uint8, in the order of the client's rows.
    features
        Global positions of the features, shape (M_k,), strictly increasing.
    """

    samples: NDArray[np.uint8]
    features: Indices


class Group(NamedTuple):
    """Items with the same holders.

    Attributes
    ----------
    clients
        Ids of the holders, in ascending order.
    blocks
        Consecutive numbers of the group's blocks, shape (blocks of the group,).
    """

    clients: tuple[str, ...]
    blocks: Indices


@dataclass(frozen=True)
class Slice:
    """Positions of one client's entries in an aligned vector.

    For an array ``local`` over the client's rows, ``aligned[slice.positions]`` corresponds to ``local[slice.order]``,
    block after block.

    Attributes
    ----------
    order
        Numbers of the client's rows (or columns) in aligned order, shape (N_k,).
    positions
        Positions in the aligned vector, strictly increasing, shape (N_k,).
    blocks
        Numbers of the client's blocks, increasing, shape (B_k,).
    sizes
        Number of items in each of these blocks, shape (B_k,), with sum N_k.
    holders
        Number ``|B_n|`` of holders of each item, in aligned order, shape (N_k,).
    group
        Number of the group of each block, shape (B_k,).
    """

    order: Indices
    positions: Indices
    blocks: Indices
    sizes: Indices
    holders: Indices
    group: Indices


@dataclass(frozen=True)
class Arrangement:
    """Arrangement of items (samples or features) in one vector, group after group, block after block.

    Attributes
    ----------
    items
        Length of the aligned vector, which has all items with a holder.
    block_sizes
        Number of items in each block, shape (blocks,). All but the last block of a group are full.
    item_holders
        Number of holders of each item, in aligned order, shape (items,).
    groups
        Groups, ordered by their holders.
    slices
        Positions of each client's items, by client id.
    """

    items: int
    block_sizes: Indices
    item_holders: Indices
    groups: tuple[Group, ...]
    slices: Mapping[str, Slice]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_sizes)


@dataclass(frozen=True)
class Alignment(Arrangement):
    """Arrangement of the samples of a run, with the holders of its features.

    Attributes
    ----------
    feature_holders
        Number ``|K_m|`` of holders of each feature, shape (M,).
    warnings
        Warnings for the operator.
    """

    feature_holders: Indices
    warnings: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Number N of samples with a holder."""
        return self.items


def align(
    local_data: Mapping[str, HeldEntries], *, features: int, block: int, ragged: bool, random: np.random.Generator
) -> Alignment:
    """Arrange the samples of all clients in one vector: setup step S2 of HyFDCA.

    The samples of a group are in random order, drawn over the rows of the group's first holder. The order is therefore
    independent of pseudonyms, and of the way in which features are split. A cell (a sample's value of a feature) with
    two holders would count twice in the sums of the method and is rejected.

    Parameters
    ----------
    local_data
        Samples and features of each client, by client id.
    features
        Number of features of the problem.
    block
        Number of samples in a full block.
    ragged
        True if a client may lack some cells of its samples and features. Two clients may then share samples and
        features but no cell, so common cells are left to :func:`check_cells`. If False, this function rejects them.
    random
        Generator of the order.

    Raises
    ------
    DataError
        If two clients hold the same cell, or a client holds a sample twice, no samples or no features.
    PayloadError
        If a client's feature positions are not strictly increasing, or not below ``features``.
    """
    clients = sorted(local_data)
    for client in clients:
        check_features(client, local_data[client].features, features)
        if len(local_data[client].samples) == 0:
            raise DataError(f"client {client} holds no samples; add samples to its data file, or leave the client out")
    held = _numbered([local_data[client].samples for client in clients])
    for client, numbers in zip(clients, held, strict=True):
        _refuse_repeated(client, numbers)
    columns = [local_data[client].features for client in clients]
    arrangement = _arrange(clients, held, 1 + max(int(numbers.max()) for numbers in held), block, random)
    if not ragged:
        _refuse_common_cells(arrangement.groups, dict(zip(clients, zip(held, columns, strict=True), strict=True)))
    feature_holders = np.zeros(features, np.int64)
    for own in columns:
        feature_holders[own] += 1
    warnings = _warnings(arrangement.item_holders, feature_holders, len(clients))
    return Alignment(**vars(arrangement), feature_holders=feature_holders, warnings=warnings)


def align_features(local_data: Mapping[str, HeldEntries], *, features: int, block: int) -> Arrangement:
    """Arrange the features of all clients in one vector, in ascending order within each group.

    Parameters
    ----------
    local_data
        Samples and features of each client, by client id, checked by :func:`align`.
    features
        Number of features of the problem.
    block
        Number of features in a full block.
    """
    clients = sorted(local_data)
    return _arrange(clients, [local_data[client].features for client in clients], features, block, None)


def check_cells(cells: Mapping[str, NDArray[np.uint8]]) -> None:
    """Raise a ``DataError`` if a cell is held more than once (docs/specifications/hyfdca.md, section 5.1, E11).

    Parameters
    ----------
    cells
        Pseudonyms of each client's non-zero cells, shape (cells, 16), uint8, by client id.
    """
    clients = sorted(cells)
    numbers = np.concatenate([np.empty(0, np.int64), *_numbered([cells[client] for client in clients])])
    count = np.bincount(numbers)
    if (count <= 1).all():
        return
    owner = np.repeat(np.arange(len(clients)), [len(cells[client]) for client in clients])
    twice = int(np.argmax(count > 1))
    first, second = (clients[i] for i in owner[numbers == twice][:2])
    whose = f"client {first}" if first == second else f"clients {first} and {second}"
    raise DataError(
        f"{int((count > 1).sum())} cells, each of one sample and one feature, have more than one value, one of "
        f"them on {whose}. A cell with two values would count twice, so keep it in one file only"
    )


def check_labels(alignment: Alignment, labels: Mapping[str, NDArray[np.uint8]]) -> None:
    """Raise a ``ContradictingLabelsError`` if the holders of a sample have different labels for it.

    The dual steps of such a sample differ between its holders, so the method does not converge to an optimum.

    Parameters
    ----------
    alignment
        Alignment of the samples.
    labels
        Pseudonyms of each client's labels, shape (N_k, 16), uint8, in the order of its rows, by client id. They are
        equal for two holders of a sample if and only if their labels are.
    """
    first_label = np.zeros((alignment.samples, LABEL_BYTES), np.uint8)
    first_holder = np.full(alignment.samples, -1)
    contradicted = np.zeros(alignment.samples, np.bool_)
    example: tuple[int, int, int] | None = None  # two clients and a sample to which they give different labels
    clients = sorted(labels)
    for number, client in enumerate(clients):
        held = alignment.slices[client]
        own = labels[client][held.order]
        new = first_holder[held.positions] < 0
        first_label[held.positions[new]] = own[new]
        first_holder[held.positions[new]] = number
        differing = held.positions[(first_label[held.positions] != own).any(axis=1)]
        contradicted[differing] = True
        if example is None and len(differing):
            example = int(first_holder[differing[0]]), number, int(differing[0])
    if example is None:
        return
    count = int(contradicted.sum())
    pair = clients[example[0]], clients[example[1]]
    rows = _row(alignment, pair[0], example[2]), _row(alignment, pair[1], example[2])
    raise ContradictingLabelsError(
        f"{count} samples have different labels at different clients. For example, row {rows[0]} of client "
        f"{pair[0]} and row {rows[1]} of client {pair[1]} are the same sample. The run does not begin; correct the "
        "labels in the clients' data",
        contradictions=count,
        clients=pair,
        rows=rows,
    )


def _row(alignment: Alignment, client: str, position: int) -> int:
    """Return the row of a client's data, from 1, at a position of the aligned vector."""
    held = alignment.slices[client]
    return int(held.order[np.searchsorted(held.positions, position)]) + 1


def check_features(client: str, own: Indices, features: int) -> None:
    """Raise ``PayloadError`` unless a client's feature positions are strictly increasing and below ``features``.

    Raise ``DataError`` if the client has none.
    """
    if len(own) == 0:
        raise DataError(f"client {client} holds no features; add features to its data file, or leave the client out")
    steps = np.diff(own)
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        raise PayloadError(
            f"feature {own[at]} is followed by feature {own[at + 1]}; expected distinct positions in increasing order",
            client=client,
        )
    if own[0] < 0 or own[-1] >= features:
        wrong = own[0] if own[0] < 0 else own[-1]
        raise PayloadError(
            f"client {client} holds feature {wrong}, but the {features} features of this run have the positions 0 "
            f"to {features - 1}; check the client's file against data.columns"
        )


def _numbered(pseudonyms: Sequence[NDArray[np.uint8]]) -> list[Indices]:
    """Return an integer for each pseudonym of each client, the same for equal pseudonyms."""
    every = np.concatenate(pseudonyms) if pseudonyms else np.empty((0, CELL_BYTES), np.uint8)
    words = every.view(np.uint64)  # rows of a few integers sort far faster than byte strings
    order = np.lexsort(words.T)
    sequence = words[order]
    numbers = np.empty(len(every), np.int64)
    numbers[order] = np.concatenate([[0], np.cumsum((sequence[1:] != sequence[:-1]).any(axis=1))])[: len(every)]
    return np.split(numbers, np.cumsum([len(own) for own in pseudonyms])[:-1])


def _refuse_repeated(client: str, numbers: Indices) -> None:
    order = np.argsort(numbers, kind="stable")
    repeated = np.flatnonzero(np.diff(numbers[order]) == 0)
    if len(repeated):
        first, second = order[repeated[0] : repeated[0] + 2] + 1
        raise DataError(
            f"rows {first} and {second} are the same sample, and {len(repeated)} rows in all are repetitions; keep "
            "one row of each sample in a client's data",
            client=client,
        )


def _arrange(
    clients: Sequence[str], held: Sequence[Indices], items: int, block: int, random: np.random.Generator | None
) -> Arrangement:
    """Group the items by their holders, order them, and divide the groups into blocks.

    Parameters
    ----------
    clients
        Client ids.
    held
        Distinct items of each client, numbers below ``items``, in the client's order.
    items
        Number of items.
    block
        Number of items in a full block.
    random
        Generator of the order within groups; ``None`` keeps the order of item numbers.
    """
    if block < 1:
        raise ValueError(f"blocks of {block} items; expected at least 1")
    group, holders = _groups(held, items)
    order = sorted(range(len(holders)), key=holders.__getitem__)
    rank = np.empty(len(holders) + 1, np.int64)
    rank[order] = np.arange(len(holders))
    rank[-1] = -1
    group = rank[group]
    holders = [holders[g] for g in order]

    if random is None:
        local = np.arange(items)
    else:
        local = np.zeros(items, np.int64)
        for own in reversed(held):  # reversed, so that the first holder writes last and determines the order
            local[own] = np.arange(len(own))
    present = np.flatnonzero(group >= 0)
    aligned = present[np.lexsort((local[present], group[present]))]
    if random is not None:
        aligned = aligned[np.lexsort((random.random(len(aligned)), group[aligned]))]
    place = np.full(items, -1)
    place[aligned] = np.arange(len(aligned))

    sizes = np.bincount(group[present], minlength=len(holders))
    blocks = -(-sizes // block)
    last = np.cumsum(blocks)
    block_sizes = np.full(last[-1], block)
    block_sizes[last - 1] = sizes - (blocks - 1) * block
    block_group = np.repeat(np.arange(len(holders)), blocks)
    block_of = np.repeat(np.arange(len(block_sizes)), block_sizes)
    item_holders = np.array([len(each) for each in holders])[group[aligned]]

    slices = {}
    for client, own in zip(clients, held, strict=True):
        own_order = np.argsort(place[own])
        positions = place[own][own_order]
        own_blocks = np.unique(block_of[positions])
        slices[client] = Slice(
            own_order, positions, own_blocks, block_sizes[own_blocks], item_holders[positions], block_group[own_blocks]
        )
    groups = tuple(
        Group(tuple(clients[k] for k in each), np.arange(end - count, end))
        for each, count, end in zip(holders, blocks, last, strict=True)
    )
    return Arrangement(len(aligned), block_sizes, item_holders, groups, slices)


def _groups(held: Sequence[Indices], items: int) -> tuple[Indices, list[tuple[int, ...]]]:
    """Group items by equal sets of holders.

    Returns
    -------
    tuple[Indices, list[tuple[int, ...]]]
        Number of each item's group, shape (items,), or -1 without a holder; and for each group the increasing
        positions of its holders among the clients.
    """
    # Partition refinement: each client splits every class of which it holds a part. The cost is proportional to the
    # number of the client's items, not to that of all items.
    label = np.zeros(items, np.int64)
    labels = 1
    for own in held:
        classes, number = np.unique(label[own], return_inverse=True)
        label[own] = labels + number
        labels += len(classes)
    used, group = np.unique(label, return_inverse=True)
    group = group - int(used[0] == 0)
    holders: list[list[int]] = [[] for _ in range(len(used) - int(used[0] == 0))]
    for client, own in enumerate(held):
        for number in np.unique(group[own]).tolist():
            holders[number].append(client)
    return group, [tuple(each) for each in holders]


def _refuse_common_cells(groups: Sequence[Group], parts: Mapping[str, tuple[Indices, Indices]]) -> None:
    """Raise a ``DataError`` if two clients have a sample and a feature in common.

    Parameters
    ----------
    groups
        Groups of samples. Only clients of one group have samples in common.
    parts
        Numbers of the samples and features of each client, by client id.
    """
    number = {client: i for i, client in enumerate(parts)}
    disjoint = np.zeros((len(parts), len(parts)), np.bool_)
    features = 1 + max(int(own[-1]) for _, own in parts.values())
    taken = np.zeros(features, np.bool_)
    for group in groups:
        members = [number[client] for client in group.clients]
        pairs = np.ix_(members, members)
        if disjoint[pairs].all():
            continue
        for client in group.clients:
            own = parts[client][1]
            if taken[own].any():
                other = next(each for each in group.clients if len(_common(parts[each][1], own)))
                raise _common_cells(other, client, parts[other], parts[client])
            taken[own] = True
        for client in group.clients:
            taken[parts[client][1]] = False
        disjoint[pairs] = True


def _common(first: Indices, second: Indices) -> Indices:
    return np.intersect1d(first, second, assume_unique=True)


def _common_cells(first: str, second: str, part: tuple[Indices, Indices], other: tuple[Indices, Indices]) -> DataError:
    samples, features = _common(part[0], other[0]), _common(part[1], other[1])
    row = int(np.flatnonzero(part[0] == samples[0])[0]) + 1
    same_row = int(np.flatnonzero(other[0] == samples[0])[0]) + 1
    return DataError(
        f"clients {first} and {second} both hold {len(samples) * len(features)} values ({len(samples)} samples, "
        f"{len(features)} features). For example, row {row} of client {first} and row {same_row} of client "
        f"{second} are the same sample, and both have feature {features[0]} (from 0). A value with two holders "
        "would count twice, so remove these samples or features from one client"
    )


def _warnings(item_holders: Indices, feature_holders: Indices, clients: int) -> tuple[str, ...]:
    found = []
    missing = np.flatnonzero(feature_holders == 0)
    if len(missing):
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        found.append(
            f"{len(missing)} of {len(feature_holders)} features are held by no client, so their coefficients stay 0: "
            f"positions {shown} (from 0). Check the clients' positions of features, or add a client that holds these"
        )
    if item_holders.max() == 1 and ((feature_holders > 0) & (feature_holders < clients)).any():
        found.append(
            "no two clients have a sample in common, although they hold different features; check that "
            "their sample identifiers have the same form"
        )
    return tuple(found)
