"""Replies are combined in the order of client ids, to the bit, whatever order they arrive in."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.wire.values import SparseVector, Value
from fenchel.fleet.cohort import Cohort, Reduced, Replies
from fenchel.fleet.question import Each, bodies
from fenchel.fleet.weighted_sum import WeightedSum, accumulate
from tests.reservations import InRoom, roomy

NOBODY = cast(Cohort, None)
PATIENCE = 60.0  # seconds; what waits for ever fails, and a busy machine does not
MIB = 1 << 20


def replies_of(clients: int, dtype: str = "float64", entries: int = 7) -> dict[str, dict[str, Value]]:
    random = np.random.default_rng(clients)
    return {
        f"client-{i:03d}": {
            "model": (random.standard_normal(entries) * 10.0 ** random.integers(-6, 6)).astype(dtype),
            "loss": float(random.standard_normal()),
            "samples": int(random.integers(1, 100)),
        }
        for i in range(clients)
    }


def reduced(replies: Mapping[str, dict[str, Value]], order: list[str], weight: str | None) -> Reduced:
    collector = Reduced(sorted(replies), weight, buffer_bytes=1)
    room = InRoom(collector, roomy(sorted(replies), 1))
    for client in order:
        room.add(client, replies[client])
    return collector


@pytest.mark.parametrize("entries", [1, 1 << 16, (1 << 16) + 1, 200_001])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_blockwise_sum_is_the_plain_sum(dtype: str, entries: int) -> None:
    arrays = [np.random.default_rng(i).standard_normal(entries).astype(dtype) for i in range(3)]
    weights = [0.1, 3.0, 1.0]
    total: np.ndarray | None = None
    plain = np.zeros(entries, dtype)
    for array, weight in zip(arrays, weights, strict=True):
        before = array.copy()
        total = accumulate(total, array, weight)
        plain = plain + array * np.dtype(dtype).type(weight)
        np.testing.assert_array_equal(array, before)
    assert total is not None
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, plain)


@pytest.mark.parametrize("weights", [(0.1, 0.1, 0.1), (3.0, 3.0, 0.1), (0.1, 3.0, 1.0), (0.0, 0.0, 7.0), (1.0, 1.0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_total_is_the_weighted_sum_also_where_the_weights_are_equal_at_first(
    dtype: str, weights: tuple[float, ...]
) -> None:
    arrays = [np.random.default_rng(i).standard_normal(50).astype(dtype) for i in range(len(weights))]
    total = WeightedSum()
    for array, weight in zip(arrays, weights, strict=True):
        before = array.copy()
        total.add(array, weight)
        np.testing.assert_array_equal(array, before)
    exact = sum(weight * array.astype(np.float64) for array, weight in zip(arrays, weights, strict=True))
    rtol, atol = (1e-6, 1e-6) if dtype == "float32" else (1e-14, 1e-15)
    np.testing.assert_allclose(total.mean(), exact / sum(weights), rtol, atol)
    assert total.mean().dtype == dtype
    np.testing.assert_allclose(total.sum(), exact, rtol, atol)
    np.testing.assert_allclose(total.mean(), exact / sum(weights), rtol, atol)  # and the sum left it as it was


@pytest.mark.parametrize("weight", [1.0, 3.0, 0.5])
def test_the_first_term_is_not_copied_and_never_changed(weight: float) -> None:
    first, second = np.arange(5.0), np.ones(5)
    total = WeightedSum()
    total.add(first, weight)
    alone = total.sum()
    np.testing.assert_array_equal(alone, weight * np.arange(5.0))
    alone += 1.0  # whoever takes the sum may go on with it
    np.testing.assert_array_equal(first, np.arange(5.0))
    total = WeightedSum()
    total.add(first, weight)
    total.add(second, weight)
    np.testing.assert_array_equal(total.sum(), weight * np.arange(1.0, 6.0))
    np.testing.assert_array_equal(first, np.arange(5.0))
    np.testing.assert_array_equal(second, np.ones(5))
    assert np.shares_memory(accumulate(None, first), first)


def test_a_small_part_of_a_message_does_not_keep_the_rest_of_it() -> None:
    message = bytes(1000)
    large, small = np.frombuffer(message, np.float64, 120), np.frombuffer(message, np.float64, 5, 960)
    assert np.shares_memory(accumulate(None, large), large)
    assert not np.shares_memory(accumulate(None, small), small)
    piece = np.frombuffer(memoryview(message)[:40], np.float64)
    assert not np.shares_memory(accumulate(None, piece), piece)


def test_sums_do_not_depend_on_the_order_of_memory() -> None:
    total = WeightedSum()
    for weight in (10.0, 20.0, 30.0):
        total.add(np.asfortranarray(np.arange(6.0).reshape(2, 3)), weight)
    np.testing.assert_array_equal(total.sum(), 60 * np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("weights", [(0.25, 0.25, 0.25, 0.25), (0.0, 0.0, 1.0), (1e-3, 1e-3)])
@pytest.mark.parametrize(("dtype", "large"), [("float32", 3e38), ("float16", 6e4)])
def test_small_weights_keep_large_numbers_from_overflowing(
    dtype: str, large: float, weights: tuple[float, ...]
) -> None:
    total = WeightedSum()
    for weight in weights:
        total.add(np.full(3, large, dtype), weight)
    np.testing.assert_allclose(total.mean(), np.full(3, large), rtol=1e-2)


def test_a_vector_with_every_entry_counts_beside_sparse_ones_in_whatever_order_they_come() -> None:
    sparse = SparseVector(np.array([1, 3]), np.array([2.0, 4.0]), 5)
    given: list[Value] = [sparse, np.arange(5.0), sparse, np.arange(5.0)]
    for first in range(4):
        collector = Reduced(["a", "b", "c", "d"], "samples", 1)
        room = InRoom(collector, roomy("abcd", 1))
        for client, value in zip("abcd", given[first:] + given[:first], strict=True):
            room.add(client, {"x": value, "samples": 3})
        np.testing.assert_array_equal(collector.sum("x"), [0, 18, 12, 42, 24])
        np.testing.assert_array_equal(collector.coverage("x"), [6, 12, 6, 12, 6])
        np.testing.assert_array_equal(collector.mean("x"), np.array([0, 18, 12, 42, 24]) / 12)


def test_replies_that_are_held_and_those_that_are_folded_have_one_mean_of_sparse_vectors() -> None:
    given: list[Value] = [SparseVector(np.array([i, 4]), np.array([1.0, 2.0]), 5) for i in range(3)]
    collector = Reduced(list("abc"), None, 1)
    room = InRoom(collector, roomy("abc", 1))
    for client, value in zip("abc", given, strict=True):
        room.add(client, {"x": value})
    replies = Replies({client: {"x": value} for client, value in zip("abc", given, strict=True)}, NOBODY)
    np.testing.assert_array_equal(replies.sum("x"), [1, 1, 1, 0, 6])
    np.testing.assert_array_equal(replies.sum("x"), collector.sum("x"))
    np.testing.assert_array_equal(replies.mean("x"), collector.mean("x"))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 3.0), (1.0, 3.0), (2.0, 1.0)])
def test_numbers_without_shape_are_summed_like_arrays(weights: tuple[float, float]) -> None:
    total = accumulate(accumulate(None, np.asarray(5.0), weights[0]), np.asarray(7.0), weights[1])
    assert float(total) == 5 * weights[0] + 7 * weights[1]


def test_replies_are_a_mapping_in_the_order_of_ids() -> None:
    given = replies_of(4)
    replies = Replies(dict(reversed(given.items())), NOBODY)
    assert list(replies) == sorted(given)
    assert len(replies) == 4
    assert replies["client-002"] is given["client-002"]
    assert replies.values_of("samples") == [given[client]["samples"] for client in sorted(given)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_are_those_of_numpy(dtype: str) -> None:
    given = replies_of(9, dtype)
    replies = Replies(given, NOBODY)
    models = np.array([given[client]["model"] for client in sorted(given)])
    samples = np.array([given[client]["samples"] for client in sorted(given)], np.float64)
    losses = np.array([given[client]["loss"] for client in sorted(given)])
    rtol = 1e-5 if dtype == "float32" else 1e-13
    mean, weighted = replies.mean("model"), replies.weighted_mean("model", "samples")
    assert mean.dtype == weighted.dtype == dtype
    np.testing.assert_allclose(mean, models.mean(axis=0), rtol=rtol)
    np.testing.assert_allclose(weighted, np.average(models, axis=0, weights=samples), rtol=rtol)
    np.testing.assert_allclose(replies.mean("loss"), losses.mean(), rtol=1e-13)
    np.testing.assert_allclose(
        replies.weighted_mean("loss", "samples"), np.average(losses, weights=samples), rtol=1e-13
    )
    np.testing.assert_array_equal(models, np.array([given[client]["model"] for client in sorted(given)]))


@pytest.mark.parametrize("weight", [None, "samples"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(order=st.permutations(sorted(replies_of(6))))
def test_folding_in_any_order_gives_the_bits_of_the_collected_mean(
    dtype: str, weight: str | None, order: list[str]
) -> None:
    given = replies_of(6, dtype)
    replies = Replies({client: given[client] for client in order}, NOBODY)
    folded = reduced(given, order, weight)
    for name in ("model", "loss"):
        collected = replies.mean(name) if weight is None else replies.weighted_mean(name, weight)
        assert np.asarray(folded.mean(name)).tobytes() == np.asarray(collected).tobytes()
        assert np.asarray(folded.mean(name)).dtype == collected.dtype
    if weight is None:
        assert folded.sum("model").tobytes() == replies.sum("model").tobytes()
        assert folded.weight == 6
    else:
        assert folded.weight == sum(cast(int, reply["samples"]) for reply in given.values())


@pytest.mark.parametrize("value", ["text", None])
def test_what_has_no_mean_is_refused_by_name(value: Value) -> None:
    with pytest.raises(TypeError):
        Replies({"a": {"note": value}}, NOBODY).mean("note")
    with pytest.raises(TypeError):
        Replies({"a": {"x": 1.0, "note": value}}, NOBODY).weighted_mean("x", "note")


CLIENTS = [f"client-{i}" for i in range(6)]
BUFFER = 4 * MIB
ARRIVALS = st.tuples(
    st.permutations(CLIENTS), st.lists(st.integers(0, 6), min_size=6, max_size=6), st.sets(st.sampled_from(CLIENTS))
)


@settings(max_examples=200)
@given(arrival=ARRIVALS)
def test_no_order_and_no_size_of_replies_ends_in_a_deadlock_or_fills_the_memory(
    arrival: tuple[list[str], list[int], set[str]],
) -> None:
    order, mebibytes, skipped = arrival
    sizes = {client: size * MIB for client, size in zip(CLIENTS, mebibytes, strict=True)}

    async def scenario() -> Reduced:
        collector = Reduced(CLIENTS, None, BUFFER)
        room = InRoom(collector, roomy(CLIENTS, BUFFER))
        held: dict[str, int] = {}

        async def arrive(client: str) -> None:
            await room.admit(client, sizes[client])
            if sizes[client] > MIB:
                held[client] = sizes[client]
            others = [size for other, size in held.items() if size > BUFFER or other != client]
            assert sum(others) <= BUFFER + max(held.values(), default=0)
            await asyncio.sleep(0)
            if client in skipped:
                room.skip(client)
            else:
                room.add(client, {"x": np.array([float(CLIENTS.index(client) + 1)])})
            held.pop(client, None)

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for client in order:
                tasks.create_task(arrive(client))
        return collector

    collector = asyncio.run(scenario())
    present = [client for client in CLIENTS if client not in skipped]
    assert collector.weight == len(present)
    if present:
        assert float(collector.sum("x")[0]) == sum(CLIENTS.index(client) + 1 for client in present)


async def test_a_small_reply_is_never_held_back() -> None:
    room = InRoom(Reduced(["a", "b", "c"], None, 1), roomy("abc", 1))
    await room.admit("c", MIB)


def test_sums_are_freed_without_the_garbage_collector() -> None:
    """Sums are as large as models, and the collector may come many rounds later."""
    replies = replies_of(3)
    gc.disable()
    try:
        collector = reduced(replies, sorted(replies), None)
        freed = weakref.ref(collector)
        del collector
        assert freed() is None
    finally:
        gc.enable()


def test_a_sum_of_no_replies_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'x'"):
        Replies({}, NOBODY).sum("x")
    with pytest.raises(ZeroDivisionError, match="'x'"):
        Replies({}, NOBODY).mean("x")
    collector = Reduced([], None, 1)
    with pytest.raises(ValueError, match="'x'"):
        collector.sum("x")
    with pytest.raises(ZeroDivisionError, match="'x'"):
        collector.mean("x")


def test_sparse_counts_are_summed_like_dense_ones() -> None:
    counts = SparseVector(np.array([1, 3]), np.array([3, 5]), 4)
    collector = Reduced(["a"], "weight", 1)
    room = InRoom(collector, roomy("a", 1))
    room.add("a", {"x": counts, "weight": 0.5})
    np.testing.assert_array_equal(collector.sum("x"), [0, 1.5, 0, 2.5])
    np.testing.assert_array_equal(collector.mean("x"), [0, 3, 0, 5])


def test_a_value_that_a_client_lacks_is_noticed_before_the_first_instruction() -> None:
    with pytest.raises(KeyError, match="'step' has no value for b"):
        next(bodies(["a", "b"], {"step": Each({"a": 0.1})}))
