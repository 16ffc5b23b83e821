"""Every encoding gives a support back, the smallest is taken, and seeded supports are those of the specification."""

from __future__ import annotations

import heapq
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fenchel.common.errors import PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.index_sets import seeded_support, splitmix64
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises
from tests.payload_sizes import support_bits

LISTED = (pb.DELTA_VARINT, pb.INDEX_LIST, pb.BITMAP)

SUPPORTS = st.integers(1, 400).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)).map(sorted))
)


def there_and_back(encoding: index_sets.Encoding, indices: list[int], size: int, seed: int = 0) -> list[int]:
    packed = index_sets.pack(encoding, np.array(indices, np.int64), size)
    index_sets.check_index_bytes(encoding, len(packed), len(indices), size)
    back = index_sets.unpack(encoding, memoryview(packed), len(indices), size, seed)
    assert back.dtype == np.int64
    return [int(j) for j in back]


def as_bits(encoding: index_sets.Encoding, indices: list[int], size: int) -> str:
    """Return a support as text of bits, the lowest first: the encodings once more, number by number."""
    if encoding == pb.BITMAP:
        return "".join("1" if j in indices else "0" for j in range(size))
    if encoding == pb.INDEX_LIST:
        width = next(w for w in range(64) if 2**w >= size)
        return "".join(f"{j:0{width}b}"[::-1] if width else "" for j in indices)
    text = ""
    for before, j in zip([0, *indices], indices, strict=False):
        gap = j - before
        while gap > 127:
            text += f"{gap % 128:07b}"[::-1] + "1"
            gap //= 128
        text += f"{gap:07b}"[::-1] + "0"
    return text


def octets(text: str) -> bytes:
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


@pytest.mark.parametrize("encoding", LISTED)
@given(support=SUPPORTS)
@example(support=(1, []))
@example(support=(1, [0]))
@example(support=(256, [0, 255]))
@example(support=(257, [0, 255, 256]))
def test_a_support_comes_back_and_its_bits_are_those_of_the_definition(
    encoding: index_sets.Encoding, support: tuple[int, list[int]]
) -> None:
    size, indices = support
    assert there_and_back(encoding, indices, size) == indices
    text = as_bits(encoding, indices, size)
    assert index_sets.pack(encoding, np.array(indices, np.int64), size) == octets(text)
    assert support_bits(encoding, np.array(indices, np.int64), size) == len(text)


def test_every_entry_needs_no_index() -> None:
    assert there_and_back(pb.EVERY_ENTRY, list(range(9)), 9) == list(range(9))
    assert index_sets.pack(pb.EVERY_ENTRY, np.arange(9), 9) == b""


@given(support=SUPPORTS, seeded=st.booleans())
@example(support=(7850, list(range(0, 7850, 400))), seeded=False)
def test_the_smallest_encoding_is_taken(support: tuple[int, list[int]], seeded: bool) -> None:
    size, found = support
    indices = np.array(found, np.int64)
    possible = [*LISTED, *[pb.SEEDED] * seeded, *[pb.EVERY_ENTRY] * (len(indices) == size)]
    least = min(support_bits(each, indices, size) for each in possible)
    chosen = index_sets.smallest(indices, size, seeded=seeded)
    assert chosen in possible
    assert support_bits(chosen, indices, size) == least


def test_a_vector_too_long_for_a_receiver_to_draw_from_is_not_sent_as_a_seed() -> None:
    indices = np.arange(0, 100_000, 10)
    assert index_sets.smallest(indices, index_sets.MAX_SEEDED_SIZE, seeded=True) == pb.SEEDED
    assert index_sets.smallest(indices, index_sets.MAX_SEEDED_SIZE + 1, seeded=True) == pb.DELTA_VARINT


@pytest.mark.parametrize(
    ("encoding", "packed", "count", "size"),
    [
        (pb.BITMAP, b"\x05\x01", 2, 9),
        (pb.BITMAP, b"\x05\x00", 3, 9),
        (pb.BITMAP, b"\x05\x02", 3, 9),
        (pb.INDEX_LIST, b"\x21\x0f", 3, 9),
        (pb.INDEX_LIST, b"\x11", 2, 9),
        (pb.INDEX_LIST, b"\x12", 2, 9),
        (pb.INDEX_LIST, b"\x21\x13", 3, 9),
    ],
)
def test_bytes_that_are_no_support_are_refused(
    encoding: index_sets.Encoding, packed: bytes, count: int, size: int
) -> None:
    index_sets.check_index_bytes(encoding, len(packed), count, size)
    with raises(PayloadError):
        index_sets.unpack(encoding, memoryview(packed), count, size, 0)


@given(packed=st.binary(min_size=1, max_size=12), count=st.integers(0, 40), size=st.integers(1, 90))
@pytest.mark.parametrize("encoding", LISTED)
def test_there_is_one_way_only_to_write_a_support(
    encoding: index_sets.Encoding, packed: bytes, count: int, size: int
) -> None:
    try:
        index_sets.check_index_bytes(encoding, len(packed), count, size)
        indices = index_sets.unpack(encoding, memoryview(packed), count, size, 0)
    except PayloadError:
        return
    index_sets.check(indices, size)
    assert index_sets.pack(encoding, indices, size) == packed


def test_splitmix_is_the_generator_of_that_name() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4  # the second number of the sequence that starts at 0
    assert splitmix64((1 << 64) - 1) == 0xE4D971771B652C20


@pytest.mark.parametrize(
    ("seed", "size", "count", "indices"),
    [(1, 10, 3, [6, 7, 8]), (12345, 650, 8, [61, 146, 250, 353, 398, 491, 492, 635])],
)
def test_seeded_supports_are_those_of_the_specification(seed: int, size: int, count: int, indices: list[int]) -> None:
    assert seeded_support(seed, size, count).tolist() == indices
    assert there_and_back(pb.SEEDED, indices, size, seed) == indices


@given(
    seed=st.one_of(st.integers(0, (1 << 64) - 1), st.just((1 << 64) - 1)),
    size=st.integers(1, 300),
    part=st.floats(0, 1),
    excluded=st.sets(st.integers(0, 299)),
)
def test_a_seeded_support_holds_the_admissible_indices_of_smallest_hash(
    seed: int, size: int, part: float, excluded: set[int]
) -> None:
    free = [j for j in range(size) if j not in excluded]
    count = round(part * len(free))
    start = splitmix64(seed)
    expected = sorted(heapq.nsmallest(count, free, key=lambda j: splitmix64((start + j) % (1 << 64))))
    public = np.array(sorted(j for j in excluded if j < size), np.int64)
    assert seeded_support(seed, size, count, public).tolist() == expected
    if not len(public):
        assert seeded_support(seed, size, count).tolist() == expected


def test_hashes_that_are_not_as_uniform_as_expected_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seeded_support(7, 100_000, 40_000)
    bounds = []
    hashed_below = index_sets._hashed_below

    def too_few_at_first(bound: int, seed: int, size: int) -> Any:
        bounds.append(bound)
        return hashed_below(bound if len(bounds) > 1 else 1 << 60, seed, size)

    monkeypatch.setattr("fenchel.common.wire.index_sets._hashed_below", too_few_at_first)
    assert np.array_equal(seeded_support(7, 100_000, 40_000), expected)
    assert len(bounds) == 2
    monkeypatch.setattr("fenchel.common.wire.index_sets.math.isqrt", lambda number: -(number // 8))  # no room at first
    assert np.array_equal(seeded_support(7, 100_000, 40_000), expected)


@given(seed=st.integers(0, (1 << 64) - 1), size=st.integers(2, 60), part=st.floats(0, 1), other=st.data())
def test_a_seed_is_taken_for_its_own_support_only(seed: int, size: int, part: float, other: st.DataObject) -> None:
    count = round(part * size)
    own = seeded_support(seed, size, count)
    index_sets.check_seed(seed, own, size)
    given_ones = sorted(other.draw(st.sets(st.integers(0, size - 1))))
    if given_ones != own.tolist():
        elsewhere = np.array(given_ones, np.int64)
        if not np.array_equal(seeded_support(seed, size, len(elsewhere)), elsewhere):
            with raises(PayloadError):
                index_sets.check_seed(seed, elsewhere, size)


def test_memory_for_a_seeded_support_grows_with_what_is_wanted_and_not_with_the_vector() -> None:
    tracemalloc.start()
    try:
        seeded_support(3, 20_000_000, 100)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_seeded_supports_are_as_good_as_uniform() -> None:
    picks = np.bincount(np.concatenate([seeded_support(seed, 50, 10) for seed in range(2000)]), minlength=50)
    # Each index is in a fifth of the supports: 400 of 2000, with a standard deviation of 17.9.
    assert np.abs(picks - 400).max() < 5 * 17.9
    assert np.square(picks - 400).sum() / 320 < 49 * 2


@pytest.mark.parametrize(
    "arguments", [(-1, 10, 3), (1 << 64, 10, 3), (1, 10, 11), (1, 10, -1), (1, 10, 8, np.array([1, 2, 3]))]
)
def test_impossible_seeded_supports_are_errors(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        seeded_support(*arguments)
