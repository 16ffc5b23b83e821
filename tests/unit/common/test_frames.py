"""Frames written and read by hand are the protobuf library's own, and stay within 1 MiB."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import WireError
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import CHUNK_BYTES, FRAME_BYTES, Body, Head, frames, parse
from fenchel.common.wire.payload import Encoded, encode
from fenchel.common.wire.reader import Assembly
from fenchel.common.wire.values import MEMORY_ALIGNMENT
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises

JOINED = 512 << 10
SIZES = sorted(
    {
        0,
        8,
        *(edge + step for edge in (JOINED, CHUNK_BYTES, FRAME_BYTES) for step in (-8, 0, 8)),
        *(2 * CHUNK_BYTES + step for step in (-8, 0, 8)),
        3 * CHUNK_BYTES + 1000,
    }
)


def encoded_of(size: int) -> Encoded:
    """A body of so many bytes, in pieces of uneven length, whose bytes differ from place to place."""
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    first = size // 3 // 8 * 8
    return encode({"a": content[:first], "b": content[first:], "label": "uneven"})


def field_name(head: Head) -> str:
    return type(head).__name__.lower()


def assembled(sent: list[bytes], head_type: type[Head]) -> tuple[Head, bytes]:
    """Put a message together with the protobuf library alone."""
    parsed = [pb.Frame.FromString(frame) for frame in sent]
    kinds = [frame.WhichOneof("head") for frame in parsed]
    assert kinds[0] is not None
    assert kinds[1:] == [None] * (len(parsed) - 1)
    head = getattr(parsed[0], kinds[0])
    assert isinstance(head, head_type)
    return head, b"".join(frame.chunk for frame in parsed)


HEADS: st.SearchStrategy[Head] = st.one_of(
    st.builds(
        pb.Instruction,
        phase=st.text(max_size=20),
        round=st.integers(0, 2**32 - 1),
        kind=st.sampled_from([pb.ASK, pb.TELL, pb.INSPECT]),
        sequence=st.integers(0, 2**64 - 1),
        base=st.integers(0, 2**64 - 1),
        low_water_mark=st.integers(0, 2**64 - 1),
    ),
    st.builds(
        pb.Reply,
        sequence=st.integers(0, 2**64 - 1),
        failure=st.text(max_size=50),
        timing=st.builds(pb.Timing, compute_ns=st.integers(-(2**63), 2**63 - 1)),
    ),
)
BARE_HEADS: st.SearchStrategy[Head] = st.one_of(
    st.builds(
        pb.Hello,
        snapshots=st.lists(st.integers(0, 2**64 - 1), max_size=5),
        stateless=st.booleans(),
        shard=st.builds(pb.ShardDescription, class_names=st.lists(st.text(max_size=5), max_size=3)),
    ),
    st.builds(pb.Welcome, partial=st.builds(pb.Partial, received=st.integers(0, 2**64 - 1))),
    st.builds(pb.Farewell, completed=st.booleans(), reason=st.text()),
    HEADS,
)


@given(head=BARE_HEADS)
def test_a_message_without_arrays_is_one_frame_that_protobuf_reads(head: Head) -> None:
    sent = list(frames(head))
    assert len(sent) == 1
    read, body = assembled(sent, type(head))
    assert (read, body) == (head, b"")
    assert parse(sent[0]).head == head


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("head", [pb.Instruction(phase="train", sequence=3), pb.Reply(sequence=3)])
def test_protobuf_reads_a_message_of_any_size_from_frames_of_one_mebibyte(head: Head, size: int) -> None:
    encoded = encoded_of(size)
    sent = list(frames(head, Body(encoded)))
    assert max(map(len, sent)) <= FRAME_BYTES
    read, body = assembled(sent, type(head))
    assert isinstance(read, pb.Instruction | pb.Reply)
    assert read.payload == encoded.descriptor
    read.ClearField("payload")
    read.ClearField("padding")
    assert read == head
    assert body == encoded.joined()
    assert b"".join(parse(frame).chunk for frame in sent) == body


@given(head=HEADS, entries=st.integers(1, 3000), shared=st.booleans())
def test_a_body_that_comes_with_its_head_is_aligned_for_computing(head: Head, entries: int, shared: bool) -> None:
    (frame,) = frames(head, Body(encode({"x": np.ones(entries)}), shared=shared))
    chunk = parse(frame).chunk
    assert (len(frame) - len(chunk)) % MEMORY_ALIGNMENT == 0
    assembly = Assembly(len(chunk))
    assembly.add(chunk)
    assert assembly.body() is chunk  # without a copy


@given(head=HEADS, chunk=st.binary(max_size=300), values=st.dictionaries(st.text(min_size=1), st.floats()))
def test_what_protobuf_writes_is_read(head: Head, chunk: bytes, values: dict[str, float]) -> None:
    assert isinstance(head, pb.Instruction | pb.Reply)
    head.payload.CopyFrom(encode(values).descriptor)
    frame = pb.Frame(chunk=chunk)
    getattr(frame, field_name(head)).CopyFrom(head)
    parsed = parse(frame.SerializeToString())
    assert parsed.head == head
    assert bytes(parsed.chunk) == chunk


@pytest.mark.parametrize(
    "received", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES]
)
def test_a_resumed_message_goes_on_at_the_last_whole_chunk(received: int) -> None:
    encoded = encoded_of(3 * CHUNK_BYTES + 1000)
    kept = received // CHUNK_BYTES * CHUNK_BYTES
    head, rest = assembled(list(frames(pb.Reply(sequence=1), Body(encoded), received)), pb.Reply)
    assert isinstance(head, pb.Reply)
    assert head.resume == kept
    assert rest == encoded.joined()[kept:]


def test_all_receivers_of_a_broadcast_get_the_identical_frames() -> None:
    body = Body(encoded_of(3 * CHUNK_BYTES))
    first, *others = (list(frames(pb.Instruction(phase="train", sequence=client), body))[1:] for client in range(4))
    assert len(first) == 3
    for other in others:
        assert all(mine is theirs for mine, theirs in zip(first, other, strict=True))
    assert next(frames(pb.Instruction(sequence=9), body, CHUNK_BYTES)) != first[0]
    assert next(iter(body.frames(CHUNK_BYTES))) is first[1]


def test_a_body_whose_frames_are_kept_lets_go_of_its_arrays() -> None:
    array = np.zeros(CHUNK_BYTES // 4)
    gone = weakref.ref(array)
    body = Body(encode({"w": array}))
    del array
    gc.collect()
    assert gone() is not None
    sent = list(body.frames())
    gc.collect()
    assert gone() is None
    assert list(body.frames()) == sent


def test_a_head_too_large_for_a_frame_is_refused_when_it_is_sent() -> None:
    with raises(WireError):
        list(frames(pb.Reply(failure="x" * FRAME_BYTES)))


def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    buffer_pool = BufferPool()

    def place(size: int = 1 << 20) -> int:
        return int(np.frombuffer(buffer_pool.take(size), np.uint8).ctypes.data)

    first = place()
    assert place() == first
    view = np.frombuffer(buffer_pool.take(1 << 20), np.uint8)[10:20]
    second = place()
    assert second != first
    assert place() == second
    del view
    assert place() in (first, second)
    assert len(buffer_pool.take(1200)) == 1200


def test_no_memory_is_used_again_where_references_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fenchel.common.wire.buffer_pool._references", lambda buffers: [3 for _ in buffers])
    buffer_pool = BufferPool()
    held = [buffer_pool.take(1 << 20) for _ in range(3)]
    assert len({np.frombuffer(each, np.uint8).ctypes.data for each in held}) == 3


def test_idle_memory_is_bounded_however_many_use_it() -> None:
    buffer_pool = BufferPool(8 << 20)
    tracemalloc.start()
    try:
        for _ in range(3):
            streams = [buffer_pool.take(4 << 20) for _ in range(25)]
            assert tracemalloc.get_traced_memory()[0] > 90 << 20
            streams.clear()
        assert 4 << 20 <= tracemalloc.get_traced_memory()[0] < 12 << 20
    finally:
        tracemalloc.stop()


@given(order=st.lists(st.integers(0, 2), max_size=30))
def test_a_view_that_is_still_alive_is_never_overwritten(order: list[int]) -> None:
    buffer_pool, stamps = BufferPool(), count(1)
    alive: list[tuple[np.ndarray, int]] = []
    for action in order:
        if action == 0 and alive:
            alive.pop(0)
            continue
        buffer, stamp = buffer_pool.take(64 if action else 128), next(stamps)
        view = np.frombuffer(buffer, np.uint8)
        view[:] = stamp
        alive.append((view, stamp))
        del buffer
        for kept, expected in alive:
            assert (kept == expected).all()


def test_a_frame_may_be_exactly_one_mebibyte() -> None:
    room = FRAME_BYTES - len(pb.Frame(chunk=bytes(1 << 20)).SerializeToString()) + (1 << 20)
    full = pb.Frame(chunk=bytes(room)).SerializeToString()
    assert len(full) == FRAME_BYTES
    assert len(parse(full).chunk) == room
    with raises(WireError):
        parse(full + b"\0")


@pytest.mark.parametrize("chunk", [b"", b"x"])
def test_a_frame_has_one_chunk_at_most_even_if_it_is_empty(chunk: bytes) -> None:
    """A frame of half a million empty chunks would otherwise keep the server busy for a quarter of a second."""
    one = pb.Frame(chunk=chunk).SerializeToString() or b"\x7a\x00"
    assert parse(one).chunk == chunk
    with raises(WireError):
        parse(one + b"\x7a\x01x")
