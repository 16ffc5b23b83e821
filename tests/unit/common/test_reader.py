"""Messages read from streams that break anywhere are those that were sent; what does not fit is refused."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

import numpy as np
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fenchel.common.errors import PayloadError, WireError
from fenchel.common.wire.frames import CHUNK_BYTES, Body, frames
from fenchel.common.wire.payload import encode
from fenchel.common.wire.reader import SMALLEST_PIECE, Assembly, IncomingMessage, MessageReader
from fenchel.common.wire.values import MEMORY_ALIGNMENT, Value
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises

LIMIT = 64 << 20
HeadT = TypeVar("HeadT", pb.Instruction, pb.Reply)


class Frames:
    """A stream that brings some frames, and then ends."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        self._left = deque(frames)

    async def read(self) -> bytes | None:
        return self._left.popleft() if self._left else None

    async def write(self, frame: bytes) -> None:
        raise NotImplementedError


def replies(frames: Iterable[bytes], begun: IncomingMessage[pb.Reply] | None = None) -> MessageReader[pb.Reply]:
    return MessageReader(Frames(frames), pb.Reply, "a client", LIMIT, begun=begun)


async def accepted(reader: MessageReader[HeadT]) -> IncomingMessage[HeadT] | None:
    """Read on until a message is complete, or the stream ends."""
    message = await reader.begin()
    if message is not None:
        reader.check(message)
        reader.accept(message)
        reader.take(message)
        while not message.is_complete and await reader.more(message):
            pass
    return message


def body(size: int) -> Body:
    """Return a body whose bytes differ from place to place."""
    return Body(encode({"x": np.random.default_rng(size).integers(0, 256, size, np.uint8), "loss": 0.5}))


def same(message: IncomingMessage[HeadT] | None, size: int) -> bool:
    if message is None or not message.is_complete:
        return False
    values = message.received().values()
    expected = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return values["loss"] == 0.5 and np.array_equal(np.asarray(values["x"]), expected)


SIZES = (0, 100, CHUNK_BYTES - 8, CHUNK_BYTES + 8, 3 * CHUNK_BYTES + 1000)


@pytest.mark.parametrize("size", SIZES)
async def test_messages_of_either_kind_are_read_one_after_the_other(size: int) -> None:
    sent = [frame for number in (1, 2) for frame in frames(pb.Reply(sequence=number), body(size))]
    reader = replies(sent)
    for number in (1, 2):
        message = await accepted(reader)
        assert message is not None
        assert same(message, size)
        assert message.head.sequence == number
        assert message.first_ns <= message.last_ns
    assert await accepted(reader) is None
    asked = Frames([*frames(pb.Instruction(sequence=3), body(size)), *frames(pb.Farewell(reason="over"))])
    instructions = MessageReader(asked, pb.Instruction, "the server", LIMIT)
    assert same(await accepted(instructions), size)
    assert await accepted(instructions) is None
    assert instructions.farewell == pb.Farewell(reason="over")


@pytest.mark.parametrize("arrived", [1, 2, 3])
async def test_a_message_goes_on_where_its_stream_broke(arrived: int) -> None:
    size = 3 * CHUNK_BYTES + 1000
    first = await accepted(replies(list(frames(pb.Reply(sequence=2), body(size)))[: 1 + arrived]))
    assert first is not None
    assert not first.is_complete
    partial = pb.Partial()
    first.announce(partial)
    assert partial == pb.Partial(sequence=2, received=arrived * CHUNK_BYTES)
    others = [*frames(pb.Reply(sequence=1), body(100)), *frames(pb.Reply(sequence=2), body(size), partial.received)]
    reader = replies(others, first)
    assert same(await accepted(reader), 100)
    whole = await accepted(reader)
    assert same(whole, size)
    assert whole is not None
    assert whole.first_ns == first.first_ns
    assert np.shares_memory(np.frombuffer(whole.assembly.body()), np.frombuffer(first.assembly.body()))


@pytest.mark.parametrize("number", [1, 2])
async def test_what_the_peer_begins_anew_or_is_past_is_not_kept(number: int) -> None:
    first = await accepted(replies(list(frames(pb.Reply(sequence=1), body(3 * CHUNK_BYTES)))[:2]))
    assert first is not None
    reader = replies(frames(pb.Reply(sequence=number), body(100)), first)
    memory = weakref.ref(first.assembly)
    del first
    assert memory() is not None
    await reader.begin()
    assert memory() is None


async def test_a_body_that_may_be_in_use_is_not_written_again() -> None:
    size = 2 * CHUNK_BYTES
    first = await accepted(replies(list(frames(pb.Reply(sequence=1), body(size)))[:2]))
    rest = list(frames(pb.Reply(sequence=1), body(size), CHUNK_BYTES))
    reader = replies([*rest, *rest], first)
    assert same(await accepted(reader), size)
    with raises(WireError):
        await accepted(reader)


CHANGED: dict[str, tuple[int, dict[str, Value]]] = {
    "another message": (2, {"x": np.zeros(2 * CHUNK_BYTES, np.uint8), "loss": 0.5}),
    "another number": (1, {"x": np.zeros(2 * CHUNK_BYTES, np.uint8), "loss": 0.6}),
    "another name": (1, {"y": np.zeros(2 * CHUNK_BYTES, np.uint8), "loss": 0.5}),
}


@pytest.mark.parametrize("case", CHANGED)
async def test_a_message_cannot_go_on_as_another(case: str) -> None:
    first = await accepted(replies(list(frames(pb.Reply(sequence=1), body(2 * CHUNK_BYTES)))[:2]))
    number, values = CHANGED[case]
    with raises(WireError):
        await accepted(replies(frames(pb.Reply(sequence=number), Body(encode(values)), CHUNK_BYTES), first))


async def test_a_message_cannot_go_on_where_nothing_began() -> None:
    with raises(WireError):
        await accepted(replies(frames(pb.Reply(sequence=1), body(2 * CHUNK_BYTES), CHUNK_BYTES)))


def piece(size: int, reply: pb.Reply | None = None) -> bytes:
    return pb.Frame(chunk=bytes(size), reply=reply).SerializeToString()


OPENING = pb.Reply(sequence=1, payload=encode({"x": np.zeros(1 << 20, np.uint8)}).descriptor)
MISPLACED = {
    "a piece of no message": [piece(100)],
    "a message of another kind": list(frames(pb.Instruction(sequence=1))),
    "a farewell of a client": list(frames(pb.Farewell())),
    "a message in the middle of another": [piece(SMALLEST_PIECE, reply=OPENING), piece(0, reply=OPENING)],
    "a farewell in the middle of a message": [piece(SMALLEST_PIECE, reply=OPENING), *frames(pb.Farewell())],
    "a small piece first": [piece(SMALLEST_PIECE - 1, reply=OPENING)],
    "a small piece later": [piece(0, reply=OPENING), piece(SMALLEST_PIECE - 1)],
    "an empty piece later": [piece(0, reply=OPENING), piece(0)],
    "bytes that were not announced": [piece(8, reply=pb.Reply(sequence=1))],
    "too long a body": [piece(0, reply=OPENING), piece((1 << 20) - 100), piece(SMALLEST_PIECE)],
    "no message": [b"\xff"],
}


@pytest.mark.parametrize("case", MISPLACED)
async def test_what_does_not_belong_here_is_refused(case: str) -> None:
    with raises(WireError):
        await accepted(replies(MISPLACED[case]))


async def test_a_body_larger_than_any_may_be_is_refused() -> None:
    large = pb.Reply(sequence=1, payload=encode({"x": np.zeros(LIMIT + 8, np.uint8)}).descriptor)
    with raises(PayloadError):
        await accepted(replies([piece(0, reply=large)]))
    reader = replies([piece(0, reply=large)])
    message = await reader.begin()
    assert message is not None
    with raises(WireError):
        reader.discard(message)


async def test_of_a_message_that_is_discarded_nothing_is_kept() -> None:
    size = 3 * CHUNK_BYTES
    reader = replies([*frames(pb.Reply(sequence=1), body(size)), *frames(pb.Reply(sequence=2), body(100))])
    message = await reader.begin()
    assert message is not None
    reader.discard(message)
    reader.take(message)
    while not message.is_complete:
        assert await reader.more(message)
    assert message.assembly.body() == b""
    assert same(await accepted(reader), 100)


@example(cuts=[])
@given(cuts=st.lists(st.integers(0, 4000), max_size=6))
def test_an_assembly_gives_back_what_was_cut_anywhere(cuts: list[int]) -> None:
    content = np.random.default_rng(0).integers(0, 256, 4000, np.uint8).tobytes()
    assembly = Assembly(len(content))
    edges = [0, *sorted(cuts), len(content)]
    for start, stop in pairwise(edges):
        assert assembly.received == start
        assembly.add(memoryview(content)[start:stop])
    assert assembly.complete
    assert bytes(assembly.body()) == content


@pytest.mark.parametrize("place", range(MEMORY_ALIGNMENT))
def test_a_body_is_aligned_in_memory_wherever_its_frame_has_it(place: int) -> None:
    content = bytes(range(64))
    chunk = memoryview(bytes(place) + content)[place:]
    assembly = Assembly(len(content))
    assembly.add(chunk)
    assert bytes(assembly.body()) == content
    assert np.frombuffer(assembly.body(), np.uint8).ctypes.data % MEMORY_ALIGNMENT == 0
    assert (assembly.body() is chunk) == (place == 0)


def test_more_bytes_than_declared_are_refused() -> None:
    assembly = Assembly(10)
    assembly.add(memoryview(bytes(6)))
    with raises(WireError):
        assembly.add(memoryview(bytes(5)))


def test_a_rewound_assembly_takes_the_later_bytes_again() -> None:
    assembly = Assembly(6)
    assembly.add(memoryview(b"abXX"))
    assembly.rewind(2)
    assembly.add(memoryview(b"cdef"))
    assert bytes(assembly.body()) == b"abcdef"
    with raises(WireError):
        assembly.rewind(7)


def test_a_discarded_body_is_counted_and_not_kept() -> None:
    assembly = Assembly(1 << 60)
    assembly.let_go()
    for _ in range(3):
        assembly.add(memoryview(bytes(100)))
    assert assembly.received == 300
    assert not assembly.complete


def test_a_message_that_is_announced_costs_no_memory_before_it_arrives() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    assembly = Assembly(1 << 30)
    assembly.add(memoryview(b"x"))
    assert process.memory_info().rss - before < 64 << 20
    assert assembly.received == 1


def test_a_message_beyond_all_memory_is_refused() -> None:
    with raises(WireError):
        Assembly(1 << 60).add(memoryview(b"x"))
