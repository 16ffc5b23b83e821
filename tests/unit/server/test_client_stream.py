"""A member has one conversation: the one on its latest stream."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np
import pytest

from fenchel.common.errors import TooFewRepliesError, WireError
from fenchel.common.wire import codecs, outline
from fenchel.common.wire.frames import CHUNK_BYTES, Body, Head, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.reader import SMALLEST_PIECE
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.memory_budget import MemoryBudget, Size
from fenchel.fleet.metering import unsolicited
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.stream.client_stream import ClientStream
from tests.messages import raises
from tests.unit.server.conftest import MakeMember, body, request_of

LIMIT = 1 << 30
PATIENCE = 20.0


async def admit(hello: pb.Hello) -> pb.Welcome:
    return pb.Welcome()


async def heard(client: MemoryStream) -> Head:
    async with asyncio.timeout(PATIENCE):
        data = await client.read()
    assert data is not None
    head = parse(data).head
    assert head is not None
    return head


async def send(client: MemoryStream, messages: Iterable[bytes]) -> None:
    for frame in messages:
        await client.write(frame)


async def connected(
    member: ClientRecord,
    hello: pb.Hello | None = None,
    admit: Callable[[pb.Hello], Awaitable[pb.Welcome]] = admit,
    **limits: Any,
) -> tuple[MemoryStream, asyncio.Task[None], pb.Welcome]:
    """Open a stream; return the client's side, the server's task, and the welcome."""
    client = MemoryStream()
    serving = asyncio.create_task(
        ClientStream(member, client.other_side(), largest=LIMIT, limits=Limits(**limits)).run(admit)
    )
    await send(client, frames(hello or pb.Hello()))
    welcome = await heard(client)
    assert isinstance(welcome, pb.Welcome)
    return client, serving, welcome


async def broken_off(member: ClientRecord, sequence: int, reply: Body) -> None:
    """Let a stream break after the first two frames of a reply."""
    client, serving, _ = await connected(member)
    await send(client, list(frames(pb.Reply(sequence=sequence), reply))[:2])
    client.outgoing.put_nowait(None)
    await serving


def asked(member: ClientRecord, deadline: float = PATIENCE, content: Body | None = None, **how: Any) -> Request:
    request = request_of(deadline=deadline, **how)
    request.expect(member, member.post("train", 1, pb.ASK, content or body(), request))
    return request


async def sent(member: ClientRecord) -> Call:
    """Wait until the only outstanding call is sent, and return it."""
    (call,) = member.outstanding.values()
    async with asyncio.timeout(PATIENCE):
        while not call.first_sent_ns:
            await asyncio.sleep(0)
    return call


async def answered(client: MemoryStream, sequence: int) -> None:
    await send(client, frames(pb.Reply(sequence=sequence), Body(encode({}))))


async def ended(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_a_client_that_comes_at_the_very_end_hears_the_farewell(member: ClientRecord) -> None:
    """Between its admission and the first instruction, when it did not count as connected yet."""

    async def admits_the_last(hello: pb.Hello) -> pb.Welcome:
        member.say_farewell(pb.Farewell(completed=True))
        return pb.Welcome()

    client, serving, _ = await connected(member, admit=admits_the_last)
    assert await heard(client) == pb.Farewell(completed=True)
    await ended(serving)


async def test_a_new_stream_ends_the_conversation_on_the_old_one(member: ClientRecord) -> None:
    request = asked(member)
    old, serving_old, _ = await connected(member)
    assert isinstance(await heard(old), pb.Instruction)
    new, serving_new, _ = await connected(member)
    assert serving_old.cancelled()
    assert member.connected
    instruction = await heard(new)
    assert isinstance(instruction, pb.Instruction)
    await answered(new, instruction.sequence)
    assert await request.finish(1) == [member.name]
    new.outgoing.put_nowait(None)
    await serving_new
    assert not member.connected


async def test_a_reply_that_broke_off_goes_on_where_it_broke(member: ClientRecord) -> None:
    request = asked(member)
    reply = Body(encode({"x": np.zeros(3 * CHUNK_BYTES, np.uint8)}))
    await broken_off(member, 1, reply)
    new, serving, welcome = await connected(member)
    assert (welcome.partial.sequence, welcome.partial.received) == (1, CHUNK_BYTES)
    await send(new, frames(pb.Reply(sequence=1), reply, welcome.partial.received))
    assert await request.finish(1) == [member.name]
    assert (member.partial, member.base) == (None, 1)
    await ended(serving)


async def test_a_reply_that_is_begun_anew_takes_its_memory_once(member: ClientRecord) -> None:
    request = asked(member)
    reply = Body(encode({"x": np.zeros(3 * CHUNK_BYTES, np.uint8)}))
    memories = []
    before = None
    for _ in range(3):
        stream, serving, _ = await connected(member)
        await send(stream, list(frames(pb.Reply(sequence=1), reply))[:3])
        while member.partial is None or member.partial.head is before or not member.partial.assembly.received:
            await asyncio.sleep(0)
        before = member.partial.head
        memories.append(weakref.ref(member.partial.assembly))
        stream.outgoing.put_nowait(None)
        await serving
    assert [memory() is None for memory in memories] == [True, True, False]
    stream, serving, welcome = await connected(member)
    await send(stream, frames(pb.Reply(sequence=1), reply, welcome.partial.received))
    assert await request.finish(1) == [member.name]
    assert memories[-1]() is None
    await ended(serving)


async def test_a_beginning_outlives_older_replies_that_come_again(member: ClientRecord) -> None:
    told = member.post("prepare", 1, pb.TELL, body(), None)
    asked(member)
    reply = Body(encode({"x": np.zeros(3 * CHUNK_BYTES, np.uint8)}))
    await broken_off(member, 2, reply)
    for confirms in (True, False):
        stream, serving, welcome = await connected(member)
        assert welcome.partial == pb.Partial(sequence=2, received=CHUNK_BYTES)
        if confirms:
            await answered(stream, told.sequence)
        stream.outgoing.put_nowait(None)
        await serving
    assert told.sequence not in member.outstanding


async def test_who_goes_on_with_a_reply_cannot_say_that_it_meant_something_else(member: ClientRecord) -> None:
    """Whole numbers are not looked at for NaN on their way, and the account names what was begun."""
    entries = np.zeros(3 * CHUNK_BYTES // 8)
    entries[5] = np.nan
    request = asked(member)
    await broken_off(member, 1, Body(encode({"x": entries.view(np.int64), "y": np.ones(8)})))
    new, serving, welcome = await connected(member)
    meant = Body(encode({"x": entries, "y": np.ones(8)}))
    await send(new, frames(pb.Reply(sequence=1), meant, welcome.partial.received))
    with raises(WireError):
        await serving
    assert not request.answered


async def test_what_a_client_has_of_an_instruction_is_not_sent_again(member: ClientRecord) -> None:
    asked(member, content=Body(encode({"model": np.zeros(3 * CHUNK_BYTES, np.uint8)})))
    hello = pb.Hello(partial=pb.Partial(sequence=1, received=2 * CHUNK_BYTES + 5))
    client, serving, _ = await connected(member, hello)
    instruction = await heard(client)
    assert isinstance(instruction, pb.Instruction)
    assert instruction.resume == 2 * CHUNK_BYTES
    rest = await client.read()
    assert rest is not None
    assert len(parse(rest).chunk) == CHUNK_BYTES
    await ended(serving)


async def test_promises_that_the_journal_proves_kept_are_not_sent_again(member: ClientRecord) -> None:
    for _ in range(3):
        member.post("shift", 1, pb.TELL, body())
    client, serving, _ = await connected(member, pb.Hello(snapshots=[2]))
    sent = [await heard(client) for _ in range(2)]
    assert [head.sequence for head in sent if isinstance(head, pb.Instruction)] == [2, 3]
    await ended(serving)


async def test_the_memory_of_a_reply_that_is_given_up_is_given_back_while_it_is_still_coming(
    member: ClientRecord,
) -> None:
    request = asked(member, deadline=0.2)
    client, serving, _ = await connected(member)
    first, second, *rest = frames(pb.Reply(sequence=1), Body(encode({"x": np.zeros(20 * CHUNK_BYTES, np.uint8)})))
    await send(client, (first, second))
    while member.partial is None or not member.partial.assembly.received:
        await asyncio.sleep(0)
    memory = weakref.ref(member.partial.assembly._buffer)
    assert memory() is not None
    with raises(TooFewRepliesError, round=1, phase="train"):
        await request.finish(1)
    assert memory() is None
    await send(client, rest)
    again = asked(member)
    await answered(client, 2)
    assert await again.finish(1) == [member.name], "the rest was dropped, and the stream goes on"
    await ended(serving)


async def test_a_reply_for_which_there_can_be_no_room_takes_none_and_fails_its_client_alone(
    member: ClientRecord, make_member: MakeMember
) -> None:
    limits = MemoryBudget(3 * CHUNK_BYTES, largest_message=LIMIT)
    other = make_member("client-1")
    room = limits.reserve("introduce", {each.name: Size(0, None) for each in (member, other)})
    request = request_of(phase="introduce", reservation=room)
    for each in (member, other):
        request.expect(each, each.post("introduce", 1, pb.ASK, body(), request))
    greedy, serving, _ = await connected(member)
    honest, serving_other, _ = await connected(other)
    with room:
        for client, chunks in ((greedy, 3), (honest, 1)):
            large = Body(encode({"x": np.zeros(chunks * CHUNK_BYTES + 1, np.uint8)}))
            await send(client, frames(pb.Reply(sequence=1), large))
            assert limits.held <= 3 * CHUNK_BYTES
        assert await request.finish(1) == [other.name]
    assert "network.in_flight_bytes" in request.failures[member.name]
    assert limits.held == 0
    again = asked(member)
    await answered(greedy, 2)
    assert await again.finish(1) == [member.name], "the stream goes on"
    for task in (serving, serving_other):
        await ended(task)


async def test_frames_that_nobody_waits_for_are_taken_slowly_and_the_answers_after_them_as_ever(
    member: ClientRecord, caplog: pytest.LogCaptureFixture
) -> None:
    request = asked(member)
    client, serving, _ = await connected(member, unsolicited_frames_per_second=100.0)
    payload = encode({"x": np.zeros(SMALLEST_PIECE * 1100, np.uint8)}).descriptor
    await client.write(pb.Frame(reply=pb.Reply(sequence=1 << 33, payload=payload)).SerializeToString())
    piece = pb.Frame(chunk=bytes(SMALLEST_PIECE)).SerializeToString()
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        for number in range(1100):
            await client.write(piece)
            if number == 1000:
                assert not caplog.records, "so many pass at once"
                started = time.monotonic()
    # Of the last hundred, 24 are still within the first 1,024, and a few wait in the queue.
    assert time.monotonic() - started > 0.5
    said = [record.getMessage() for record in caplog.records]
    assert ["many unsolicited replies" in line for line in said] == [True]
    await answered(client, 1)
    assert await request.finish(1) == [member.name]
    await ended(serving)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the values whose descriptors were looked at."""
    names: list[str] = []
    look = codecs.part_of

    def part(item: pb.Array) -> codecs.ValueLayout:
        names.append(item.name)
        return look(item)

    monkeypatch.setattr(outline, "part_of", part)
    return names


def of_many_values(sequence: int, count: int = 10_000, first: int = 0) -> bytes:
    values = [pb.Array(name=str(n), scalar=pb.Scalar(real=n)) for n in range(first, first + count)]
    return pb.Frame(reply=pb.Reply(sequence=sequence, payload=pb.Payload(arrays=values))).SerializeToString()


async def test_a_reply_to_nothing_with_thousands_of_values_ends_its_stream_before_they_are_looked_at(
    member: ClientRecord, parsed: list[str]
) -> None:
    request = asked(member)
    for _ in range(3):
        client, serving, _ = await connected(member)
        await client.write(of_many_values(1 << 33))
        with raises(WireError):
            await serving
    assert not parsed
    client, serving, _ = await connected(member)
    await answered(client, 1)
    assert await request.finish(1) == [member.name]
    await ended(serving)


async def test_an_answer_with_more_values_than_were_asked_for_fails_before_they_are_looked_at(
    member: ClientRecord, parsed: list[str]
) -> None:
    request = asked(member, values=2)
    client, serving, _ = await connected(member)
    await client.write(of_many_values(1))
    with raises(TooFewRepliesError, round=1, phase="train"):
        await request.finish(1)
    assert "10,000 values; expected at most 2" in request.failures[member.name]
    assert not parsed
    again = asked(member)
    await answered(client, 2)
    assert await again.finish(1) == [member.name], "the stream goes on"
    await ended(serving)


async def test_a_client_that_was_told_has_no_values_to_return(member: ClientRecord, parsed: list[str]) -> None:
    member.post("shift", 1, pb.TELL, body())
    client, serving, _ = await connected(member)
    await client.write(of_many_values(1, 1))
    with raises(WireError):
        await serving
    assert not parsed


async def test_unsolicited_replies_are_counted_for_the_client_and_looked_at_after_they_were_counted(
    member: ClientRecord, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes back by another stream has as many left as before."""
    monkeypatch.setattr(unsolicited, "_REPLIES_AT_ONCE", 5)
    for stream in range(3):
        client, serving, _ = await connected(member, unsolicited_per_second=1e-9)
        for number in range(3):
            await client.write(of_many_values(1 << 33, 1, first=number))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(parsed) == min(3 * (stream + 1), 5)
        await ended(serving)


async def test_a_client_that_was_frozen_is_sent_the_current_request_and_none_that_has_ended(
    member: ClientRecord,
) -> None:
    client, serving, _ = await connected(member, unsolicited_per_second=1e-9)
    missed = [asked(member, deadline=0.001)]
    first = await sent(member)
    for _ in range(49):
        with raises(TooFewRepliesError, round=1, phase="train"):
            await missed[-1].finish(1)
        missed.append(asked(member, deadline=0.001))
    with raises(TooFewRepliesError, round=1, phase="train"):
        await missed[-1].finish(1)
    current = asked(member)
    sequences = []
    for _ in range(2):
        instruction = await heard(client)
        assert isinstance(instruction, pb.Instruction)
        sequences.append(instruction.sequence)
        await answered(client, instruction.sequence)
    assert await current.finish(1) == [member.name]
    assert sequences == [1, 51]
    assert first.outcome == "late"
    assert member.overdue is None
    await ended(serving)


async def test_a_request_that_a_client_skips_since_it_was_undone_does_not_hold_up_the_next(
    member: ClientRecord,
) -> None:
    client, serving, _ = await connected(member)
    undone = asked(member, deadline=0.001)
    await sent(member)
    with raises(TooFewRepliesError, round=1, phase="train"):
        await undone.finish(1)
    told = member.post("shift", 1, pb.TELL, body())
    current = asked(member)
    for sequence in (1, told.sequence):
        instruction = await heard(client)
        assert isinstance(instruction, pb.Instruction)
        assert instruction.sequence == sequence
    await answered(client, told.sequence)
    instruction = await heard(client)
    assert isinstance(instruction, pb.Instruction)
    await answered(client, instruction.sequence)
    assert await current.finish(1) == [member.name]
    await ended(serving)


async def test_a_late_reply_is_not_slowed_down(member: ClientRecord) -> None:
    request = asked(member, deadline=0.05)
    client, serving, _ = await connected(member, unsolicited_frames_per_second=0.001, unsolicited_per_second=0.001)
    with raises(TooFewRepliesError, round=1, phase="train"):
        await request.finish(1)
    late = Body(encode({"x": np.zeros(SMALLEST_PIECE * 1100, np.uint8)}))
    piece = pb.Frame(chunk=bytes(SMALLEST_PIECE)).SerializeToString()
    head = pb.Reply(sequence=1, payload=pb.Payload.FromString(late.payload))
    async with asyncio.timeout(PATIENCE):
        await client.write(pb.Frame(reply=head).SerializeToString())
        await send(client, [piece] * 1100)
        again = asked(member)
        await answered(client, 2)
        assert await again.finish(1) == [member.name]
    await ended(serving)
