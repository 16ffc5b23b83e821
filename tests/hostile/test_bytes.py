"""Whatever bytes arrive: they are read, or an error of the wire's own family says why not."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import PayloadError, WireError
from fenchel.common.wire.frames import Assembly, Body, frames, parse
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import ArraySpec, CipherSpec, check
from fenchel.common.wire.values import SparseVector, Value
from fenchel.proto import fenchel_pb2 as pb

LIMIT = 1 << 16
fuzz = settings(max_examples=300)

KEY = PublicKey((2**89 - 1) * (2**107 - 1))
LAYOUT = Layout(slot_bits=40, fraction_bits=20, slots=4, value_bits=30)
ENCRYPTED = CipherVector(KEY, LAYOUT, 6, 2, [KEY.n_squared - 1, KEY.n_squared // 3])

SEED = b"".join(
    frames(
        pb.Reply(sequence=3, timing=pb.Timing(compute_ns=5)),
        Body(
            encode(
                {
                    "model": np.arange(4.0),
                    "flags": np.array([True, False]),
                    "thin": SparseVector(np.array([1, 300]), np.ones(2), 1000),
                    "list": SparseVector(np.array([1, 40_000]), np.ones(2), 50_000),
                    "bitmap": SparseVector(np.arange(0, 60, 2), np.ones(30, np.float16), 61),
                    "seeded": SparseVector(seeded_support(9, 2000, 40), np.ones(40, np.uint8), 2000, 9),
                    "every": SparseVector(np.arange(7), np.zeros(7), 7),
                    "samples": 3,
                    "dual": ENCRYPTED.to_wire(),
                }
            )
        ),
    )
)
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]))
ENCODINGS = st.sampled_from([*pb.SupportEncoding.values(), 99])


def fitting(dtype: int, size: int, count: int, encoding: int) -> pb.Sparse:
    """Return the description of a sparse vector whose indices take as many bytes as they may."""
    lengths = {pb.DELTA_VARINT: count, pb.BITMAP: -(-size // 8)}
    lengths[pb.INDEX_LIST] = -(-count * max(size - 1, 0).bit_length() // 8)
    return pb.Sparse(
        dtype=dtype,  # type: ignore[arg-type]
        size=size,
        count=size if encoding == pb.EVERY_ENTRY else count,
        index_bytes=lengths.get(encoding, 0),  # type: ignore[call-overload]
        encoding=encoding,  # type: ignore[arg-type]
    )


CONTENTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda dtype, shape: {"dense": pb.Dense(dtype=dtype, shape=shape)},
        st.integers(0, 8),
        st.lists(SIZES, max_size=4),
    ),
    st.builds(
        lambda dtype, size, count, length, encoding, seed: {
            "sparse": pb.Sparse(dtype=dtype, size=size, count=count, index_bytes=length, encoding=encoding, seed=seed)
        },
        st.integers(0, 8),
        st.one_of(SIZES, st.integers(0, 10 * LIMIT)),
        SIZES,
        SIZES,
        ENCODINGS,
        st.integers(0, 2),
    ),
    st.builds(  # the lengths fit: it is for the bytes themselves to be right or wrong
        lambda dtype, size, part, encoding: {"sparse": fitting(dtype, size, int(part * size), encoding)},
        st.integers(1, 6),
        st.integers(0, 3000),
        st.floats(0, 1),
        ENCODINGS,
    ),
    st.builds(
        lambda key, bits, value_bits, slots, count, additions, width: {
            "ciphertexts": pb.Ciphertexts(
                key_id=key,
                slot_bits=bits,
                fraction_bits=bits,
                value_bits=value_bits,
                slots=slots,
                count=count,
                additions=additions,
                ciphertext_bytes=width,
            )
        },
        st.one_of(st.just(KEY.id), st.binary(max_size=17)),
        st.one_of(st.just(40), st.integers(0, 2**32 - 1)),
        st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)),
        st.one_of(st.integers(0, 8), st.integers(0, 2**32 - 1)),
        SIZES,
        SIZES,
        st.one_of(st.integers(0, 80), st.integers(0, 2**32 - 1)),
    ),
    st.builds(lambda value: {"scalar": pb.Scalar(real=value)}, st.floats()),
    st.just({"scalar": pb.Scalar()}),
    st.just({}),
)
DESCRIPTORS = st.builds(
    lambda items, size: pb.Payload(body_bytes=size, arrays=[pb.Array(name=name, **content) for name, content in items]),
    st.lists(st.tuples(st.text(max_size=3), CONTENTS), max_size=4),
    SIZES,
)


def received(data: bytes) -> None:
    """Do with a frame what either side does with it, and look at every value."""
    frame = parse(data)
    if isinstance(frame.head, pb.Reply | pb.Instruction):
        told = outline(frame.head.payload, LIMIT)
        assembly = Assembly(told.size)
        assembly.add(frame.chunk)
        if assembly.complete:
            values = told.decode(assembly.body())
            for name, value in values.items():
                assert_supported(value)
                if isinstance(value, Ciphertexts):
                    with contextlib.suppress(PayloadError):
                        CipherVector.from_wire(value, KEY)
                    with contextlib.suppress(PayloadError):
                        check({name: value}, {name: CipherSpec(KEY, LAYOUT, 6, 2)}, client="somebody")
            check(values, {"model": ArraySpec(np.float64, (None,))}, client="somebody")


def assert_supported(value: Value) -> None:
    """Look at the indices of a sparse vector that was let through."""
    if isinstance(value, SparseVector):
        assert value.indices.dtype == np.int64
        assert value.indices.shape == value.values.shape
        assert not len(value.indices) or 0 <= value.indices[0] <= value.indices[-1] < value.size
        assert (np.diff(value.indices) > 0).all()


def mutated(data: st.DataObject, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                changed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del changed[place : place + data.draw(st.integers(1, 8))]
            case "insert":
                changed[place:place] = data.draw(st.binary(min_size=1, max_size=12))
            case "repeat":
                changed += changed[place:]
        if not changed:
            break
    return bytes(changed)


@fuzz
@given(data=st.binary(max_size=200))
@example(data=b"\xff" * 20)
@example(data=b"\x7a\xff\xff\xff\xff\x0f")
def test_random_bytes_are_no_frame_or_a_harmless_one(data: bytes) -> None:
    with contextlib.suppress(WireError):
        received(data)


@fuzz
@given(data=st.data())
def test_a_frame_changed_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    with contextlib.suppress(WireError):
        received(mutated(data, SEED))


def test_the_frame_that_is_changed_is_a_good_one() -> None:
    frame = parse(SEED)
    assert isinstance(frame.head, pb.Reply)
    values = outline(frame.head.payload, LIMIT).decode(frame.chunk)
    assert values["samples"] == 3
    encodings = {item.sparse.encoding for item in frame.head.payload.arrays if item.HasField("sparse")}
    assert encodings == set(pb.SupportEncoding.values()) - {pb.SUPPORT_ENCODING_UNSPECIFIED}
    dual = values["dual"]
    assert isinstance(dual, Ciphertexts)
    assert CipherVector.from_wire(dual, KEY).ciphertexts == ENCRYPTED.ciphertexts


@fuzz
@given(descriptor=DESCRIPTORS, seed=st.integers(0, 255))
@example(descriptor=pb.Payload(arrays=[pb.Array(name="x", dense=pb.Dense(dtype=pb.BOOL, shape=[0, 2**63]))]), seed=0)
def test_any_descriptor_is_refused_or_its_body_can_be_judged(descriptor: pb.Payload, seed: int) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(PayloadError):
            told = outline(descriptor, LIMIT)
            assert told.size <= LIMIT
            for value in told.decode(np.random.default_rng(seed).bytes(told.size)).values():
                assert_supported(value)
        assert tracemalloc.get_traced_memory()[1] < 64 * LIMIT
    finally:
        tracemalloc.stop()


@fuzz
@given(descriptor=DESCRIPTORS, body=st.binary(max_size=64))
def test_a_descriptor_that_nobody_checked_cannot_be_decoded_into_anything_else(
    descriptor: pb.Payload, body: bytes
) -> None:
    descriptor.body_bytes = len(body)
    with contextlib.suppress(PayloadError):
        outline(descriptor, LIMIT).decode(body)


@fuzz
@given(data=st.data())
def test_an_encrypted_vector_changed_anywhere_is_one_of_the_range_or_refused(data: st.DataObject) -> None:
    wire = ENCRYPTED.to_wire()
    content = mutated(data, bytes(wire.data))
    changed = Ciphertexts(
        wire.key_id, LAYOUT, data.draw(st.integers(0, 12)), wire.additions, wire.ciphertext_bytes, content
    )
    try:
        found = CipherVector.from_wire(changed, KEY)
    except PayloadError:
        return
    assert len(found.ciphertexts) == LAYOUT.ciphertexts(changed.count) == len(content) / KEY.ciphertext_bytes
    assert all(0 < ciphertext < KEY.n**2 for ciphertext in found.ciphertexts)
    assert bytes(found.to_wire().data) == content


@fuzz
@given(size=st.integers(0, 50), pieces=st.lists(st.tuples(st.sampled_from("adr"), st.binary(max_size=30)), max_size=8))
def test_an_assembly_takes_chunks_in_any_manner_or_refuses_them(size: int, pieces: list[tuple[str, bytes]]) -> None:
    assembly = Assembly(size)
    with contextlib.suppress(WireError):
        for action, piece in pieces:
            if action == "a":
                assembly.add(memoryview(piece))
            elif action == "r":
                assembly.rewind(len(piece))
            if assembly.complete:
                assert len(assembly.body()) == size
                break
