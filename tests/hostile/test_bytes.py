"""Whatever bytes arrive: they are read, or an error of the wire's own family says why not."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import PayloadError, WireError
from common.expectation import ArraySpec, check
from common.frames import Assembly, Body, frames, parse
from common.payload import SparseVector, body_bytes, decode, encode
from proto import fenchel_pb2 as pb

LIMIT = 1 << 16
fuzz = settings(max_examples=300)

SEED = b"".join(
    frames(
        pb.Reply(sequence=3, timing=pb.Timing(compute_ns=5)),
        Body(
            encode(
                {
                    "model": np.arange(4.0),
                    "flags": np.array([True, False]),
                    "thin": SparseVector(np.array([1, 300]), np.ones(2), 1000),
                    "samples": 3,
                }
            )
        ),
    )
)
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]))
CONTENTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda dtype, shape: {"dense": pb.Dense(dtype=dtype, shape=shape)},
        st.integers(0, 8),
        st.lists(SIZES, max_size=4),
    ),
    st.builds(
        lambda dtype, size, count, length: {
            "sparse": pb.Sparse(dtype=dtype, size=size, count=count, index_bytes=length)
        },
        st.integers(0, 8),
        SIZES,
        SIZES,
        SIZES,
    ),
    st.builds(lambda value: {"scalar": pb.Scalar(real=value)}, st.floats()),
    st.just({"scalar": pb.Scalar()}),
    st.just({}),
)
DESCRIPTORS = st.builds(
    lambda items, size: pb.Payload(
        body_bytes=size, arrays=[pb.Array(name=name, **content) for name, content in items]
    ),
    st.lists(st.tuples(st.text(max_size=3), CONTENTS), max_size=4),
    SIZES,
)


def received(data: bytes) -> None:
    """Do with a frame what either side does with it, and look at every value."""
    frame = parse(data)
    if isinstance(frame.head, pb.Reply | pb.Instruction):
        assembly = Assembly(body_bytes(frame.head.payload, LIMIT))
        assembly.add(frame.chunk)
        if assembly.complete:
            values = decode(frame.head.payload, assembly.body())
            check(values, {"model": ArraySpec(np.float64, (None,))}, "somebody")


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
    assert decode(frame.head.payload, frame.chunk)["samples"] == 3


@fuzz
@given(descriptor=DESCRIPTORS, seed=st.integers(0, 255))
@example(
    descriptor=pb.Payload(arrays=[pb.Array(name="x", dense=pb.Dense(dtype=pb.BOOL, shape=[0, 2**63]))]),
    seed=0,
)
def test_any_descriptor_is_refused_or_its_body_can_be_judged(descriptor: pb.Payload, seed: int) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(PayloadError):
            size = body_bytes(descriptor, LIMIT)
            assert size <= LIMIT
            decode(descriptor, np.random.default_rng(seed).bytes(size))
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
        body_bytes(descriptor, LIMIT)
        decode(descriptor, body)


@fuzz
@given(
    size=st.integers(0, 50),
    pieces=st.lists(st.tuples(st.sampled_from("adr"), st.binary(max_size=30)), max_size=8),
)
def test_an_assembly_takes_chunks_in_any_manner_or_refuses_them(
    size: int, pieces: list[tuple[str, bytes]]
) -> None:
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
