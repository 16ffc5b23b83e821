"""Every client's slice says the same of a sample, whoever else holds it and however the data is spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.alignment import Alignment, Arrangement, HeldEntries, align, align_features, check_cells
from fenchel.common.arrays import Indices
from fenchel.common.errors import DataError, PayloadError
from tests.messages import raises


def names_of(samples: int, key: int = 0) -> NDArray[np.uint8]:
    """Pseudonyms of the samples 0, 1, ... under a key, shape (samples, 32)."""
    return np.random.default_rng(key).integers(0, 256, (samples, 32), dtype=np.uint8)


def held_by(rows: Indices, columns: Indices, key: int = 0, samples: int = 1000) -> HeldEntries:
    return HeldEntries(names_of(samples, key)[rows], np.asarray(columns, np.int64))


def grid(sample_groups: int, feature_groups: int, samples: int, features: int, key: int = 0) -> dict[str, HeldEntries]:
    """Clients as ``data.partition: grid`` numbers them: group k, feature block q is client q K + k."""
    rows = np.array_split(np.random.default_rng(7).permutation(samples), sample_groups)
    columns = np.array_split(np.arange(features), feature_groups)
    return {
        f"client-{q * sample_groups + k:03d}": held_by(np.sort(rows[k]), columns[q], key)
        for q in range(feature_groups)
        for k in range(sample_groups)
    }


def aligned(local_data: dict[str, HeldEntries], features: int, block: int = 4, seed: int = 3) -> Alignment:
    random = np.random.default_rng(seed)
    return align(local_data, features=features, block=block, ragged=False, random=random)


def in_order(local_data: dict[str, HeldEntries], alignment: Alignment) -> list[bytes]:
    """The pseudonym at each place of the aligned vector, as any of its holders has it."""
    places: dict[int, bytes] = {}
    for client, part in alignment.slices.items():
        for place, row in zip(part.positions.tolist(), part.order.tolist(), strict=True):
            places[place] = local_data[client].samples[row].tobytes()
    return [places[place] for place in range(alignment.samples)]


@st.composite
def hybrids(draw: st.DrawFn) -> tuple[dict[str, HeldEntries], int]:
    """Rectangular clients in general position.

    Blocks of features, the samples of each dealt in their own way, some of them to nobody: a sample has any number
    of holders, and cells are missing.
    """
    samples = draw(st.integers(1, 40))
    blocks = draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    unheld = draw(st.integers(0, 2))
    local_data: dict[str, HeldEntries] = {}
    start = 0
    for _ in range(blocks):
        clients, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        owner = random.integers(-1, clients, samples)
        for client in range(clients):
            rows = random.permutation(np.flatnonzero(owner == client))
            if len(rows):
                name = f"c{random.integers(10**9):09d}"
                local_data[name] = held_by(rows, np.arange(start, start + width))
        start += width
    if not local_data:
        local_data["alone"] = held_by(np.arange(samples), np.array([0]))
    return local_data, start + unheld


def check_arrangement(found: Arrangement, keys: dict[str, list[bytes]], block: int) -> None:
    """Check all that an arrangement promises; ``keys`` names each client's items in its own order."""
    holders: dict[bytes, set[str]] = {}
    for client, own in keys.items():
        for key in own:
            holders.setdefault(key, set()).add(client)
    assert found.items == len(holders) == found.block_sizes.sum()
    assert found.blocks == len(found.block_sizes)
    starts = np.cumsum(found.block_sizes) - found.block_sizes
    places: dict[bytes, int] = {}
    for client, own in keys.items():
        part = found.slices[client]
        assert sorted(part.order) == list(range(len(own)))
        assert (np.diff(part.positions) > 0).all()
        for row, place, count in zip(part.order, part.positions, part.holders, strict=True):
            assert places.setdefault(own[row], place) == place  # every holder knows the same place
            assert count == len(holders[own[row]]) == found.item_holders[place]
        spans = [np.arange(starts[b], starts[b] + found.block_sizes[b]) for b in part.blocks]
        np.testing.assert_array_equal(np.concatenate(spans), part.positions)
        np.testing.assert_array_equal(part.sizes, found.block_sizes[part.blocks])
        for number, own_group in zip(part.blocks, part.group, strict=True):
            assert client in found.groups[own_group].clients
            assert number in found.groups[own_group].blocks
    assert sorted(places.values()) == list(range(found.items))
    at = {place: key for key, place in places.items()}
    seen = 0
    for group in found.groups:
        for number in group.blocks:
            assert number == seen
            seen += 1
            for place in range(starts[number], starts[number] + found.block_sizes[number]):
                assert tuple(sorted(holders[at[place]])) == group.clients
        assert (found.block_sizes[group.blocks[:-1]] == block).all()
        assert 1 <= found.block_sizes[group.blocks[-1]] <= block
    assert seen == found.blocks
    clients = [group.clients for group in found.groups]
    assert clients == sorted(set(clients))


@given(hybrids(), st.integers(1, 9))
def test_slices_of_any_hybrid_data_fit_each_other(layout: tuple[dict[str, HeldEntries], int], block: int) -> None:
    local_data, features = layout
    found = aligned(local_data, features, block)
    check_arrangement(found, {c: [row.tobytes() for row in h.samples] for c, h in local_data.items()}, block)
    counts = [sum(m in h.features for h in local_data.values()) for m in range(features)]
    np.testing.assert_array_equal(found.feature_holders, counts)
    assert any("held by no client" in text for text in found.warnings) == (0 in counts)


@given(hybrids(), st.integers(1, 9))
def test_slices_of_features_fit_each_other(layout: tuple[dict[str, HeldEntries], int], block: int) -> None:
    local_data, features = layout
    found = align_features(local_data, features=features, block=block)
    keys = {c: [m.tobytes() for m in h.features] for c, h in local_data.items()}
    check_arrangement(found, keys, block)
    for part in found.slices.values():
        for number in part.blocks:  # and within a block they keep their order
            start = found.block_sizes[:number].sum()
            within = (part.positions >= start) & (part.positions < start + found.block_sizes[number])
            assert (np.diff(part.order[within]) > 0).all()


@given(st.data())
def test_ragged_data_may_have_samples_and_features_in_common(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 6))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    owner = random.integers(0, clients, (30, 12))  # of each cell
    local_data = {
        f"c{k}": held_by(np.flatnonzero((owner == k).any(axis=1)), np.flatnonzero((owner == k).any(axis=0)))
        for k in range(clients)
        if (owner == k).any()
    }
    found = align(local_data, features=12, block=5, ragged=True, random=np.random.default_rng(1))
    check_arrangement(found, {c: [row.tobytes() for row in h.samples] for c, h in local_data.items()}, 5)
    expected = [len(set(row)) for row in owner]
    assert sorted(found.item_holders) == sorted(expected)


@pytest.mark.parametrize("sample_groups", [1, 3])
def test_the_order_of_samples_does_not_depend_on_the_split_of_features(sample_groups: int) -> None:
    orders = []
    for feature_groups in (1, 2, 3, 5):
        local_data = grid(sample_groups, feature_groups, samples=100, features=10)
        orders.append(in_order(local_data, aligned(local_data, 10)))
    assert all(order == orders[0] for order in orders)


def test_the_order_of_samples_does_not_depend_on_the_key_of_the_pseudonyms() -> None:
    one, two = (aligned(grid(3, 2, 100, 10, key=key), 10) for key in (0, 1))
    for client, part in one.slices.items():
        np.testing.assert_array_equal(part.order, two.slices[client].order)
        np.testing.assert_array_equal(part.positions, two.slices[client].positions)


def test_the_order_of_samples_is_a_random_one() -> None:
    local_data = {"alone": held_by(np.arange(1000), np.array([0]))}
    one, two = (aligned(local_data, 1, seed=seed).slices["alone"].order for seed in (1, 2))
    for order in (one, two):  # fixed points of a random order: 1 on average
        assert (order == np.arange(1000)).sum() < 10
        assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.2
    assert (one == two).sum() < 10


def test_features_that_nobody_holds_are_warned_of_and_have_no_place() -> None:
    local_data = {"a": held_by(np.arange(4), np.array([1])), "b": held_by(np.arange(3, 6), np.array([4]))}
    found = aligned(local_data, 6)
    np.testing.assert_array_equal(found.feature_holders, [0, 1, 0, 0, 1, 0])
    assert found.warnings == (
        "4 of 6 features are held by no client, so their coefficients stay 0: positions 0, 2, 3, 5 (from 0). Check the "
        "clients' positions of features, or add a client that holds these",
    )
    assert align_features(local_data, features=6, block=8).items == 2
    assert aligned(grid(2, 2, 10, 4), 4).warnings == ()


def test_clients_with_different_features_and_no_common_sample_are_warned_of() -> None:
    apart = {"a": held_by(np.arange(3), np.array([0])), "b": held_by(np.arange(3, 6), np.array([1]))}
    (warning,) = aligned(apart, 2).warnings
    assert "check that their sample identifiers have the same form" in warning
    assert aligned(grid(3, 1, 12, 4), 4).warnings == ()  # a horizontal split has no sample in common either


def test_cells_that_two_clients_hold_are_refused_with_an_example() -> None:
    local_data = {
        "east": held_by(np.array([9, 8, 7]), np.array([3, 4])),
        "north": held_by(np.array([1, 2, 3, 4]), np.array([0, 1, 2])),
        "south": held_by(np.array([5, 4, 2]), np.array([1, 2, 3])),
    }
    with raises(DataError) as refusal:
        aligned(local_data, 5)
    text = str(refusal.value)
    assert "feature 1 (from 0)" in text
    rows = [(2, 3), (4, 2)]  # sample 2, sample 4
    assert any(f"row {a} of client north and row {b} of client south are the same sample" in text for a, b in rows)
    found = align(local_data, features=5, block=2, ragged=True, random=np.random.default_rng(0))
    assert found.samples == 8


@given(st.data())
def test_common_cells_are_refused_exactly_where_there_are_some(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    clients = data.draw(st.integers(1, 5))
    local_data: dict[str, HeldEntries] = {}
    parts: list[tuple[set[int], set[int]]] = []
    for client in range(clients):
        rows = random.permutation(12)[: random.integers(1, 5)]
        columns = np.sort(random.permutation(10)[: random.integers(1, 4)])
        local_data[f"c{client}"] = held_by(rows, columns)
        parts.append((set(rows.tolist()), set(columns.tolist())))
    overlaps = {
        (f"c{a}", f"c{b}"): len(parts[a][0] & parts[b][0]) * len(parts[a][1] & parts[b][1])
        for b in range(clients)
        for a in range(b)
    }
    try:
        aligned(local_data, 10)
    except DataError as refusal:
        found = [(f"clients {a} and {b} both hold {n} values") in str(refusal) for (a, b), n in overlaps.items() if n]
        assert sum(found) == 1
    else:
        assert not any(overlaps.values())


def test_a_client_without_data_is_refused() -> None:
    local_data = grid(2, 1, 10, 4)
    for empty in (
        replace(local_data["client-001"], samples=np.empty((0, 32), np.uint8)),
        replace(local_data["client-001"], features=np.empty(0, np.int64)),
    ):
        with raises(DataError):
            aligned(local_data | {"client-001": empty}, 4)


def test_a_sample_twice_in_one_client_is_refused_by_rows() -> None:
    local_data = {
        "north": held_by(np.arange(9), np.array([0])),
        "south": held_by(np.array([4, 6, 5, 6]), np.array([1])),
    }
    with raises(DataError, client="south"):
        aligned(local_data, 2)


@pytest.mark.parametrize("features", [[0, 2, 2], [3, 1], [-1, 1], [1, 4]])
def test_features_out_of_order_or_range_are_refused(features: list[int]) -> None:
    local_data = {"north": held_by(np.arange(3), np.array(features))}
    with raises(PayloadError):
        aligned(local_data, 4)


def test_pseudonyms_that_differ_in_one_byte_are_different_samples() -> None:
    one = names_of(1).repeat(33, axis=0)
    one[np.arange(32), np.arange(32)] ^= 1
    found = aligned({"a": HeldEntries(one, np.array([0])), "b": HeldEntries(one[::-1].copy(), np.array([1]))}, 2)
    assert found.samples == 33
    assert (found.item_holders == 2).all()


def cells_of(*numbers: int) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (100, 16), dtype=np.uint8)[list(numbers)]


def test_a_cell_held_twice_is_refused_with_its_holders() -> None:
    check_cells({"a": cells_of(1, 2, 3), "b": cells_of(4), "c": cells_of()})
    with raises(DataError):
        check_cells({"c": cells_of(9, 2, 1), "b": cells_of(4, 5), "a": cells_of(1, 2, 3)})
    with raises(DataError):
        check_cells({"a": cells_of(1), "b": cells_of(4, 4)})
