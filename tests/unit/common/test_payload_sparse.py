"""Sparse vectors travel in the smallest encoding, cost what the specification says, and come back whole."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.compression.sparsification import kept
from fenchel.common.errors import PayloadError
from fenchel.common.wire.index_sets import MAX_SEEDED_SIZE, Encoding, seeded_support
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises
from tests.payload_sizes import payload_bits

MNIST, ADULT = 7850, 162
GENEROUS = 1 << 30


def drawn(size: int, k: int, seed: int | None = None) -> SparseVector:
    """Return a float32 vector with a random support."""
    generator = np.random.default_rng(k)
    indices = np.sort(generator.permutation(size)[:k]) if seed is None else seeded_support(seed, size, k)
    return SparseVector(indices, generator.standard_normal(k).astype(np.float32), size, seed)


def travelled(vector: SparseVector) -> tuple[SparseVector, pb.Sparse]:
    encoded = encode({"x": vector})
    descriptor = pb.Payload.FromString(encoded.descriptor.SerializeToString())
    outline(descriptor, GENEROUS)
    back = outline(descriptor, GENEROUS).decode(encoded.joined())["x"]
    assert isinstance(back, SparseVector)
    return back, descriptor.arrays[0].sparse


@pytest.mark.parametrize(
    ("size", "alpha", "encoding", "wanted"),
    [
        (MNIST, 0.5, pb.BITMAP, 133_450),
        (MNIST, 0.1, pb.BITMAP, 32_970),
        (MNIST, 0.1, pb.INDEX_LIST, 35_325),
        (MNIST, 0.05, pb.INDEX_LIST, 17_685),
        (MNIST, 0.9, pb.INDEX_LIST, 317_925),
        (ADULT, 0.5, pb.BITMAP, 2754),
        (ADULT, 0.1, pb.INDEX_LIST, 640),
        (MNIST, 0.1, pb.SEEDED, 32 * 785 + 64),
        (MNIST, 1.0, pb.EVERY_ENTRY, 251_200),
        (ADULT, 1.0, pb.EVERY_ENTRY, 5184),
    ],
)
def test_payloads_cost_what_the_specification_says(size: int, alpha: float, encoding: Encoding, wanted: int) -> None:
    assert payload_bits(drawn(size, kept(alpha, size)), encoding) == wanted


@given(size=st.integers(1, 3000), part=st.floats(0, 1), seed=st.one_of(st.none(), st.integers(0, (1 << 64) - 1)))
def test_what_travels_is_what_was_counted_and_comes_back(size: int, part: float, seed: int | None) -> None:
    vector = drawn(size, round(part * size), seed)
    back, described = travelled(vector)
    assert np.array_equal(back.indices, vector.indices)
    assert back.values.tobytes() == vector.values.tobytes()
    assert back.size == size
    assert back.seed == (seed if described.encoding == pb.SEEDED else None)
    on_the_way = 8 * (described.index_bytes + back.values.nbytes) + 64 * (described.encoding == pb.SEEDED)
    assert payload_bits(vector) == payload_bits(vector, described.encoding)
    assert on_the_way - 8 < payload_bits(vector) <= on_the_way


def test_a_seed_travels_in_place_of_many_indices_and_not_of_few() -> None:
    assert travelled(drawn(MNIST, 785, 1 << 63))[1].encoding == pb.SEEDED
    few, described = travelled(drawn(MNIST, 2, 9))
    assert described.encoding == pb.DELTA_VARINT
    assert few.seed is None


@pytest.mark.parametrize("seed", [6, -1, 1 << 64])
def test_indices_that_do_not_follow_from_their_seed_are_refused(seed: int) -> None:
    with raises(PayloadError):
        encode({"x": replace(drawn(1000, 200, 5), seed=seed)})


def test_a_size_that_no_vector_has_is_refused() -> None:
    for size in (-1, 1 << 63):
        with raises(PayloadError):
            encode({"x": SparseVector(np.empty(0, np.int64), np.empty(0), size)})


def described(**changes: Any) -> pb.Payload:
    """Return the descriptor of 16 seeded values of uint8, with changes."""
    numbers: dict[str, Any] = {
        "dtype": pb.UINT8, "size": 1000, "count": 16, "index_bytes": 0, "encoding": pb.SEEDED, "seed": 3,
    }  # fmt: skip
    numbers |= changes
    size = numbers["index_bytes"] + -numbers["index_bytes"] % 8 + numbers["count"] + -numbers["count"] % 8
    return pb.Payload(body_bytes=size, arrays=[pb.Array(name="x", sparse=pb.Sparse(**numbers))])


LISTED = {"encoding": pb.INDEX_LIST, "seed": 0}
LIES: dict[str, dict[str, Any]] = {
    "a vector too long to draw from": {"size": MAX_SEEDED_SIZE + 1},
    "a vector beyond all memory": {"size": 1 << 60},
    "more entries than the vector has": {"size": 15},
    "index bytes beside a seed": {"index_bytes": 8},
    "no encoding": {"encoding": pb.SUPPORT_ENCODING_UNSPECIFIED, "seed": 0},
    "an unknown encoding": {"encoding": 77, "seed": 0},
    "a seed beside indices": {"encoding": pb.INDEX_LIST, "index_bytes": 20},
    "a list that is too short": LISTED | {"index_bytes": 19},
    "a list that is too long": LISTED | {"index_bytes": 21},
    "a list of a vector beyond all memory": LISTED | {"size": 1 << 60, "index_bytes": 20},
    "a bitmap that is too short": {"encoding": pb.BITMAP, "seed": 0, "index_bytes": 124},
    "a bitmap that is too long": {"encoding": pb.BITMAP, "seed": 0, "index_bytes": 126},
    "a bitmap beyond the limit": {"encoding": pb.BITMAP, "seed": 0, "size": 1 << 60, "index_bytes": 1 << 57},
    "not every entry": {"encoding": pb.EVERY_ENTRY, "seed": 0},
    "every entry, and indices": {"encoding": pb.EVERY_ENTRY, "seed": 0, "size": 16, "index_bytes": 16},
    "differences that are too few": {"encoding": pb.DELTA_VARINT, "seed": 0, "index_bytes": 15},
    "differences that are too many": {"encoding": pb.DELTA_VARINT, "seed": 0, "index_bytes": 145},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_descriptor_that_lies_is_refused_before_anything_is_allocated(lie: str) -> None:
    descriptor = described(**LIES[lie])
    tracemalloc.start()
    try:
        with raises(PayloadError):
            outline(descriptor, GENEROUS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_vector_that_the_lies_are_about_is_a_good_one() -> None:
    descriptor = described()
    assert outline(descriptor, GENEROUS).size == 16
    back = outline(descriptor, GENEROUS).decode(bytes(16))["x"]
    assert isinstance(back, SparseVector)
    assert np.array_equal(back.indices, seeded_support(3, 1000, 16))


def test_many_vectors_together_may_not_be_longer_than_one() -> None:
    item = described().arrays[0]
    several = pb.Payload(body_bytes=48)
    for name in "abc":
        several.arrays.add(name=name, sparse=item.sparse)
    assert outline(several, GENEROUS, longest=3000).size == 48
    with raises(PayloadError):
        outline(several, GENEROUS, longest=2999)
