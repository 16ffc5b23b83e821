"""A member has one conversation: the one on its latest stream."""

from __future__ import annotations

import asyncio

import numpy as np

from common.frames import CHUNK_BYTES, Body, Head, frames, parse
from common.payload import Values, encode
from deploy.inprocess import MemoryStream
from proto import fenchel_pb2 as pb
from server.conversation import Conversation
from server.exchange import Exchange
from server.member import Member
from server.replies import Gathered
from tests.unit.server.conftest import body

LIMIT = 1 << 30
PATIENCE = 20.0


def accept(client: str, values: Values, finite: bool) -> None:
    """Find nothing wrong with a reply."""


async def admit(hello: pb.Hello) -> pb.Welcome:
    return pb.Welcome()


async def heard(client: MemoryStream) -> Head:
    async with asyncio.timeout(PATIENCE):
        data = await client.read()
    assert data is not None
    head = parse(data).head
    assert head is not None
    return head


async def connected(
    member: Member, hello: pb.Hello | None = None
) -> tuple[MemoryStream, asyncio.Task[None], Head]:
    """Open a stream; return the client's side, the server's task, and the welcome."""
    client = MemoryStream()
    serving = asyncio.create_task(Conversation(member, client.other_side(), LIMIT).run(admit))
    for frame in frames(hello or pb.Hello()):
        await client.write(frame)
    return client, serving, await heard(client)


def asked(member: Member) -> Exchange:
    exchange = Exchange("train", 1, Gathered(), accept, PATIENCE)
    exchange.expect(member, member.post("train", 1, pb.ASK, body(), exchange))
    return exchange


async def test_a_new_stream_ends_the_conversation_on_the_old_one(member: Member) -> None:
    exchange = asked(member)
    old, serving_old, _ = await connected(member)
    assert isinstance(await heard(old), pb.Instruction)
    new, serving_new, _ = await connected(member)
    assert serving_old.cancelled()
    assert member.connected
    instruction = await heard(new)
    assert isinstance(instruction, pb.Instruction)
    for frame in frames(pb.Reply(sequence=instruction.sequence), Body(encode({}))):
        await new.write(frame)
    assert await exchange.finish(1) == [member.name]
    new.outgoing.put_nowait(None)
    await serving_new
    assert not member.connected


async def test_a_reply_that_broke_off_goes_on_where_it_broke(member: Member) -> None:
    exchange = asked(member)
    reply = Body(encode({"x": np.zeros(3 * CHUNK_BYTES, np.uint8)}))
    old, serving, _ = await connected(member)
    first, second, *_ = frames(pb.Reply(sequence=1), reply)
    for frame in (first, second):
        await old.write(frame)
    old.outgoing.put_nowait(None)
    await serving
    new, serving, welcome = await connected(member)
    assert isinstance(welcome, pb.Welcome)
    assert (welcome.partial.sequence, welcome.partial.received) == (1, CHUNK_BYTES)
    for frame in frames(pb.Reply(sequence=1), reply, welcome.partial.received):
        await new.write(frame)
    assert await exchange.finish(1) == [member.name]
    assert (member.partial, member.base) == (None, 1)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_what_a_client_has_of_an_instruction_is_not_sent_again(member: Member) -> None:
    exchange = Exchange("train", 1, Gathered(), accept, PATIENCE)
    large = Body(encode({"model": np.zeros(3 * CHUNK_BYTES, np.uint8)}))
    exchange.expect(member, member.post("train", 1, pb.ASK, large, exchange))
    hello = pb.Hello(partial=pb.Partial(sequence=1, received=2 * CHUNK_BYTES + 5))
    client, serving, _ = await connected(member, hello)
    instruction = await heard(client)
    assert isinstance(instruction, pb.Instruction)
    assert instruction.resume == 2 * CHUNK_BYTES
    rest = await client.read()
    assert rest is not None
    assert len(parse(rest).chunk) == CHUNK_BYTES
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_promises_that_the_journal_proves_kept_are_not_sent_again(member: Member) -> None:
    for _ in range(3):
        member.post("shift", 1, pb.TELL, body())
    client, serving, _ = await connected(member, pb.Hello(snapshots=[2]))
    sent = [await heard(client) for _ in range(2)]
    assert [head.sequence for head in sent if isinstance(head, pb.Instruction)] == [2, 3]
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
