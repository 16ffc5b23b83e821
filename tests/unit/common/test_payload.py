"""Whatever is encoded comes back as it was, and a descriptor that lies is refused before it costs anything."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fenchel.common.compression.sparsification import kept
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import PayloadError
from fenchel.common.wire.index_sets import MAX_SEEDED_SIZE, Encoding, seeded_support
from fenchel.common.wire.outline import MAX_ARRAYS, Outlines, Received, outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector, Value, Values
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises
from tests.payload_sizes import payload_bits

DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool")
GENEROUS = 1 << 30
FAR = 1 << 62
MNIST, ADULT = 7850, 162


def travelled(values: Values) -> dict[str, Value]:
    """Return the values as a receiver sees them."""
    encoded = encode(values)
    descriptor = pb.Payload.FromString(encoded.descriptor.SerializeToString())
    body = encoded.joined()
    assert len(body) == encoded.size == outline(descriptor, GENEROUS).size
    return outline(descriptor, GENEROUS).decode(body)


def same_array(mine: Any, theirs: Any) -> bool:
    """Whether two arrays agree to the bit, nan included."""
    return (
        isinstance(theirs, np.ndarray)
        and mine.dtype.newbyteorder("<") == theirs.dtype
        and mine.shape == theirs.shape
        and mine.astype(theirs.dtype).tobytes() == theirs.tobytes()
    )


def same(mine: Value, theirs: Value) -> bool:
    if isinstance(mine, SparseVector):
        return (
            isinstance(theirs, SparseVector)
            and theirs.seed in (mine.seed, None)
            and mine.size == theirs.size
            and same_array(mine.indices, theirs.indices)
            and same_array(mine.values, theirs.values)
        )
    if isinstance(mine, np.ndarray):
        return same_array(mine, theirs)
    if isinstance(mine, Ciphertexts):
        return mine == theirs
    return type(mine) is type(theirs) and (mine == theirs or mine != mine)


def sparse(indices: list[int], size: int, dtype: str = "float64") -> SparseVector:
    return SparseVector(np.array(indices, np.int64), np.arange(len(indices)).astype(dtype), size)


def drawn(size: int, k: int, seed: int | None = None) -> SparseVector:
    """Return a float32 vector with a random support."""
    generator = np.random.default_rng(k)
    indices = np.sort(generator.permutation(size)[:k]) if seed is None else seeded_support(seed, size, k)
    return SparseVector(indices, generator.standard_normal(k).astype(np.float32), size, seed)


def encrypted(
    count: int, *, slots: int = 3, width: int = 40, additions: int = 1, key: bytes = bytes(16)
) -> Ciphertexts:
    """Return ciphertexts of arbitrary bytes: what they hold is no matter of payloads."""
    layout = Layout(slot_bits=40, fraction_bits=20, slots=slots, value_bits=30)
    data = np.random.default_rng(count).bytes(layout.ciphertexts(count) * width)
    return Ciphertexts(key, layout, count, additions, width, data)


ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
SPARSE = st.builds(
    lambda indices, room, dtype: sparse(sorted(indices), max(indices, default=-1) + 1 + room, dtype),
    st.sets(st.one_of(st.integers(0, 300), st.integers(FAR - 300, FAR + 300), st.integers(0, 2 * FAR - 3))),
    st.integers(0, 1),
    st.sampled_from(DTYPES),
)
CIPHERTEXTS = st.builds(
    encrypted,
    st.integers(0, 20),
    slots=st.integers(1, 4),
    width=st.integers(40, 70),
    additions=st.integers(0, 512),
    key=st.binary(min_size=16, max_size=16),
)
SCALARS: st.SearchStrategy[bool | int | float | str] = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text()
)
VALUES = st.dictionaries(st.text(min_size=1), st.one_of(ARRAYS, SPARSE, CIPHERTEXTS, SCALARS), max_size=5)


@given(values=VALUES)
@example(values={"empty": np.empty((0, 3)), "scalar": np.array(2.5), "none": sparse([], 0)})
def test_any_values_come_back_as_they_were(values: dict[str, Value]) -> None:
    back = travelled(values)
    assert list(back) == list(values)
    for name, value in values.items():
        assert same(value, back[name]), (name, value, back[name])


def test_arrays_in_another_layout_arrive_as_their_values() -> None:
    table = np.arange(12.0).reshape(3, 4)
    big_endian = table.astype(">f8")
    back = travelled({"transposed": table.T, "strided": table[:, ::2], "big": big_endian})
    np.testing.assert_array_equal(back["transposed"], table.T)
    np.testing.assert_array_equal(back["strided"], table[:, ::2])
    np.testing.assert_array_equal(back["big"], table)


def test_decoded_arrays_are_read_only_views_of_the_body() -> None:
    encoded = encode({"w": np.arange(5.0), "s": sparse([1, 3], 9)})
    body = bytearray(encoded.joined())
    back = outline(encoded.descriptor, GENEROUS).decode(memoryview(body))
    dense, thin = back["w"], back["s"]
    assert isinstance(dense, np.ndarray)
    assert isinstance(thin, SparseVector)
    for array in (dense, thin.values):
        assert np.shares_memory(array, np.frombuffer(body, np.uint8))
        assert not array.flags.writeable


def test_ciphertexts_are_neither_copied_when_they_are_sent_nor_when_they_are_read() -> None:
    mine = encrypted(7)
    encoded = encode({"flags": np.ones(3, bool), "dual": mine})
    assert any(segment is mine.data for segment in encoded.segments)
    body = bytearray(encoded.joined())
    back = outline(encoded.descriptor, GENEROUS).decode(memoryview(body))["dual"]
    assert isinstance(back, Ciphertexts)
    assert isinstance(back.data, memoryview)
    assert back.data.readonly
    assert np.shares_memory(np.frombuffer(back.data, np.uint8), np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("dtype", ["int32", "uint64", "complex128", "longdouble", "U3", "O", "M8[s]"])
def test_a_dtype_that_cannot_travel_is_refused_by_name(dtype: str) -> None:
    with raises(PayloadError):
        encode({"gradient": np.zeros(2, dtype)})


@pytest.mark.parametrize(
    "values",
    [
        {"": 1.0},
        {"x": None},
        {"x": [1.0]},
        {"x": 1 << 63},
        {"x": -(1 << 63) - 1},
        {"x": sparse([3, 3], 9)},
        {"x": sparse([3, 2], 9)},
        {"x": sparse([-1, 2], 9)},
        {"x": sparse([8, 9], 9)},
        {"x": SparseVector(np.array([1]), np.ones(2), 9)},
        *({"x": SparseVector(np.empty(0, np.int64), np.empty(0), size)} for size in (-1, 1 << 63)),
        *({"x": replace(drawn(1000, 200, 5), seed=seed)} for seed in (6, -1, 1 << 64)),  # not the indices' own
        {"x": SparseVector(np.array([1.0]), np.ones(1), 9)},
        {"x": replace(encrypted(7), data=bytes(119))},
        {"x": encrypted(7, key=b"short")},
        {"x": encrypted(7, width=29)},
        {"x": encrypted(7, additions=513)},
        {"x": encrypted(7, additions=-1)},
    ],
)
def test_what_cannot_travel_is_refused_when_it_is_sent(values: Values) -> None:
    with raises(PayloadError):
        encode(values)


def dense_item(dtype: int = pb.FLOAT64, shape: tuple[int, ...] = (2,), name: str = "x") -> pb.Array:
    return pb.Array(name=name, dense=pb.Dense(dtype=dtype, shape=shape))  # type: ignore[arg-type]


def sparse_item(size: int, count: int, index_bytes: int) -> pb.Array:
    thin = pb.Sparse(dtype=pb.FLOAT64, size=size, count=count, index_bytes=index_bytes, encoding=pb.DELTA_VARINT)
    return pb.Array(name="x", sparse=thin)


def cipher_item(**changes: Any) -> pb.Payload:
    """Return the descriptor of seven encrypted values, with changes that its body's size follows where it can."""
    numbers: dict[str, Any] = {
        "key_id": bytes(16),
        "slot_bits": 40,
        "fraction_bits": 20,
        "value_bits": 30,
        "slots": 3,
        "count": 7,
        "additions": 1,
        "ciphertext_bytes": 40,
    }
    numbers |= changes
    rows = -(-numbers["count"] // max(numbers["slots"], 1))
    size = rows * numbers["ciphertext_bytes"]
    return pb.Payload(
        body_bytes=min(size + -size % 8, (1 << 64) - 1),
        arrays=[pb.Array(name="x", ciphertexts=pb.Ciphertexts(**numbers))],
    )


HUGE = 1 << 40


def seeded_item(**changes: Any) -> pb.Payload:
    """Return the descriptor of 16 seeded values of uint8, with changes."""
    numbers: dict[str, Any] = {
        "dtype": pb.UINT8, "size": 1000, "count": 16, "index_bytes": 0, "encoding": pb.SEEDED, "seed": 3,
    }  # fmt: skip
    numbers |= changes
    size = numbers["index_bytes"] + -numbers["index_bytes"] % 8 + numbers["count"] + -numbers["count"] % 8
    return pb.Payload(body_bytes=size, arrays=[pb.Array(name="x", sparse=pb.Sparse(**numbers))])


LISTED = {"encoding": pb.INDEX_LIST, "seed": 0}
SPARSE_LIES: dict[str, dict[str, Any]] = {
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
LIES = {
    **{lie: seeded_item(**changes) for lie, changes in SPARSE_LIES.items()},
    "a body of another size": pb.Payload(body_bytes=8, arrays=[dense_item()]),
    "a body without arrays": pb.Payload(body_bytes=8),
    "a name twice": pb.Payload(body_bytes=32, arrays=[dense_item(), dense_item()]),
    "no name": pb.Payload(body_bytes=16, arrays=[dense_item(name="")]),
    "an unspecified dtype": pb.Payload(body_bytes=16, arrays=[dense_item(0)]),
    "an unknown dtype": pb.Payload(body_bytes=16, arrays=[dense_item(99)]),
    "a shape beyond the limit": pb.Payload(body_bytes=HUGE * 8, arrays=[dense_item(shape=(HUGE,))]),
    "a shape whose size overflows 64 bits": pb.Payload(body_bytes=0, arrays=[dense_item(shape=(1 << 32,) * 2)]),
    "an empty array with a side that no array can have": pb.Payload(arrays=[dense_item(shape=(0, 1 << 63))]),
    "an empty array with sides whose product overflows": pb.Payload(arrays=[dense_item(shape=(0, 1 << 40, 1 << 40))]),
    "too many dimensions": pb.Payload(body_bytes=8, arrays=[dense_item(shape=(1,) * 33)]),
    "more entries than the vector is long": pb.Payload(body_bytes=24, arrays=[sparse_item(1, 2, 2)]),
    "fewer index bytes than indices": pb.Payload(body_bytes=24, arrays=[sparse_item(9, 2, 1)]),
    "more index bytes than indices can take": pb.Payload(body_bytes=40, arrays=[sparse_item(9, 2, 21)]),
    "index bytes without indices": pb.Payload(body_bytes=8, arrays=[sparse_item(9, 0, 8)]),
    "a vector longer than an index can say": pb.Payload(body_bytes=16, arrays=[sparse_item(1 << 63, 1, 1)]),
    "ciphertexts of nothing": pb.Payload(arrays=[pb.Array(name="x", ciphertexts=pb.Ciphertexts())]),
    "a key without a name": cipher_item(key_id=b""),
    "a key with a long name": cipher_item(key_id=bytes(1 << 20)),
    "no slots": cipher_item(slots=0),
    "more slots than a ciphertext has room for": cipher_item(slots=5),
    "more slots than any ciphertext has room for": cipher_item(slots=(1 << 32) - 1),
    "slots without bits": cipher_item(slot_bits=0),
    "values without bits": cipher_item(value_bits=0),
    "values as wide as their slots": cipher_item(value_bits=40),
    "slots wider than any": cipher_item(slot_bits=(1 << 32) - 1, value_bits=(1 << 32) - 2),
    "a fraction finer than any": cipher_item(fraction_bits=(1 << 32) - 1),
    "ciphertexts without bytes": cipher_item(ciphertext_bytes=0),
    "ciphertexts too small for their slots": cipher_item(ciphertext_bytes=29),
    "sums of more vectors than slots have room for": cipher_item(additions=513),
    "sums of more vectors than can be counted": cipher_item(additions=(1 << 64) - 1),
    "ciphertexts beyond the limit": cipher_item(count=HUGE),
    "ciphertexts whose size overflows 64 bits": cipher_item(count=(1 << 64) - 1),
    "large ciphertexts whose size overflows 64 bits": cipher_item(
        count=(1 << 63) - 1, slots=1, ciphertext_bytes=(1 << 32) - 1
    ),
    "no content": pb.Payload(arrays=[pb.Array(name="x")]),
    "a scalar without a value": pb.Payload(arrays=[pb.Array(name="x", scalar=pb.Scalar())]),
    "too many arrays": pb.Payload(
        arrays=[pb.Array(name=str(i), scalar=pb.Scalar(real=1)) for i in range(MAX_ARRAYS + 1)]
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_descriptor_that_lies_is_refused_before_anything_is_allocated(lie: str) -> None:
    descriptor = LIES[lie]
    tracemalloc.start()
    try:
        with raises(PayloadError):
            outline(descriptor, GENEROUS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_the_vectors_that_the_lies_are_about_are_good_ones() -> None:
    descriptor = seeded_item()
    assert outline(descriptor, GENEROUS).size == 16
    back = outline(descriptor, GENEROUS).decode(bytes(16))["x"]
    assert isinstance(back, SparseVector)
    assert np.array_equal(back.indices, seeded_support(3, 1000, 16))
    assert outline(cipher_item(), GENEROUS).size == 120
    assert outline(cipher_item(additions=512, ciphertext_bytes=30), GENEROUS).size == 96


def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    descriptor = encode({"w": np.zeros(10)}).descriptor
    assert outline(descriptor, 80).size == 80
    with raises(PayloadError):
        outline(descriptor, 79)


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"\0", lambda body: b""])
def test_a_body_of_another_length_than_declared_is_refused(change: Callable[[bytes], bytes]) -> None:
    encoded = encode({"w": np.arange(3.0)})
    with raises(PayloadError):
        outline(encoded.descriptor, GENEROUS).decode(change(encoded.joined()))


@pytest.mark.parametrize("octet", [2, 128, 255])
def test_a_boolean_is_zero_or_one_and_nothing_else(octet: int) -> None:
    dense = encode({"flags": np.ones(3, bool)})
    with raises(PayloadError):
        outline(dense.descriptor, GENEROUS).decode(dense.joined().replace(b"\1", bytes([octet]), 1))
    thin = encode({"flags": sparse([5, 7], 9, "bool")})
    body = bytearray(thin.joined())
    body[9] = octet
    with raises(PayloadError):
        outline(thin.descriptor, GENEROUS).decode(bytes(body))


def with_indices(packed: bytes, count: int, size: int = 1 << 62) -> tuple[pb.Payload, bytes]:
    """Return a sparse vector of uint8 whose index bytes are these."""
    body = packed + bytes(-len(packed) % 8)
    body += bytes(count) + bytes(-count % 8)
    thin = pb.Sparse(dtype=pb.UINT8, size=size, count=count, index_bytes=len(packed), encoding=pb.DELTA_VARINT)
    return pb.Payload(body_bytes=len(body), arrays=[pb.Array(name="x", sparse=thin)]), body


@pytest.mark.parametrize(
    ("packed", "count", "size"),
    [
        (b"\x05\x00", 2, 9),  # the same index twice
        (b"\x09", 1, 9),  # beyond the end
        (b"\x05\x04", 2, 9),  # the sum is beyond the end
        (b"\x85\x00", 1, 9),  # a byte more than needed
        (b"\x85", 1, 1 << 62),  # cut off
        (b"\x05\x85", 1, 1 << 62),  # cut off after the last one
        (b"\x05\x01\x01", 2, 9),  # more numbers than entries
        (b"\x85\x01", 2, 1 << 62),  # fewer numbers than entries
        (b"\xff" * 9 + b"\x01\x01", 2, 1 << 62),  # beyond 63 bits
        ((b"\xff" * 8 + b"\x7f") * 2, 2, (1 << 63) - 1),  # the sum overflows
        ((b"\xff" * 8 + b"\x7f") * 2 + b"\x02", 3, (1 << 63) - 1),  # and comes back from there
    ],
)
def test_indices_out_of_order_or_range_are_refused(packed: bytes, count: int, size: int) -> None:
    descriptor, body = with_indices(packed, count, size)
    outline(descriptor, GENEROUS)
    with raises(PayloadError):
        outline(descriptor, GENEROUS).decode(body)


def test_the_largest_index_that_fits_is_accepted() -> None:
    descriptor, body = with_indices(b"\xfe" + b"\xff" * 7 + b"\x7f", 1, (1 << 63) - 1)
    found = outline(descriptor, GENEROUS).decode(body)["x"]
    assert isinstance(found, SparseVector)
    assert found.indices.tolist() == [(1 << 63) - 2]


def test_what_is_announced_again_is_the_same_outline() -> None:
    outlines = Outlines(1 << 20)
    values: Values = {"model": np.zeros(3, np.float32), "samples": 4}
    first = outlines.of(encode(values).descriptor)
    assert outlines.of(encode(values).descriptor) is first
    assert first == outline(encode(values).descriptor, 1 << 20)
    others: list[Values] = [
        {**values, "samples": 5},
        {**values, "model": np.zeros(3)},
        {**values, "model": np.zeros((3, 1), np.float32)},
    ]
    for other in others:
        announced = encode(other).descriptor
        assert outlines.of(announced) == outline(announced, 1 << 20) != first
    for _ in range(2):
        with raises(PayloadError):
            outlines.of(encode({"model": np.zeros(1 << 18)}).descriptor)


def test_a_client_cannot_make_the_server_hold_on_to_what_it_announced() -> None:
    long = "n" * 500_000
    replies = [
        pb.Reply(payload=encode({"model": np.zeros(3)}).descriptor, failure=long),
        pb.Reply(payload=encode({long: np.zeros(3)}).descriptor),
    ]
    received = [reply.SerializeToString() for reply in replies]
    outlines = [Outlines(1 << 20) for _ in range(200)]
    before = _resident_bytes()
    for each in outlines:
        for data in received:
            each.of(pb.Reply.FromString(data).payload)
    assert _resident_bytes() - before < 50e6, "100 MB, if all of it were held"


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_matrices_and_masked_arrays_travel_as_the_arrays_that_they_hold() -> None:
    matrix = scipy.sparse.csr_matrix(np.eye(3)).sum(axis=0)
    masked = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])
    encoded = encode({"m": matrix, "x": masked})
    told = outline(encoded.descriptor, 1 << 20)
    values = Received(told, memoryview(encoded.joined())).values()
    np.testing.assert_array_equal(values["m"], np.ones((1, 3)))
    np.testing.assert_array_equal(values["x"], [0.0, 1.0, 2.0])


# Sparse vectors: the smallest encoding, at the cost that the specification says


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
    encoded = encode({"x": vector})
    described = encoded.descriptor.arrays[0].sparse
    back = travelled({"x": vector})["x"]
    assert isinstance(back, SparseVector)
    assert np.array_equal(back.indices, vector.indices)
    assert back.values.tobytes() == vector.values.tobytes()
    assert back.size == size
    assert back.seed == (seed if described.encoding == pb.SEEDED else None)
    on_the_way = 8 * (described.index_bytes + back.values.nbytes) + 64 * (described.encoding == pb.SEEDED)
    assert payload_bits(vector) == payload_bits(vector, described.encoding)
    assert on_the_way - 8 < payload_bits(vector) <= on_the_way


def test_a_seed_travels_in_place_of_many_indices_and_not_of_few() -> None:
    for k, seed, encoding in ((785, 1 << 63, pb.SEEDED), (2, 9, pb.DELTA_VARINT)):
        assert encode({"x": drawn(MNIST, k, seed)}).descriptor.arrays[0].sparse.encoding == encoding


def test_many_vectors_together_may_not_be_longer_than_one() -> None:
    item = seeded_item().arrays[0]
    several = pb.Payload(body_bytes=48)
    for name in "abc":
        several.arrays.add(name=name, sparse=item.sparse)
    assert outline(several, GENEROUS, longest=3000).size == 48
    with raises(PayloadError):
        outline(several, GENEROUS, longest=2999)
