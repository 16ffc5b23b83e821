"""The server's side of one client's Work stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from common.errors import WireError
from common.frames import Assembly, frames, parse
from common.memory import Recycler
from common.payload import body_bytes, decode, float_spans
from common.stream import Stream
from proto import fenchel_pb2 as pb
from server.calls import Call
from server.exchange import Exchange
from server.member import Member

log = logging.getLogger("fenchel.server")


class Conversation:
    """Sends a member's instructions down its stream and takes the replies up.

    Parameters
    ----------
    member
        Whose stream it is.
    stream
        The frames.
    max_message_bytes
        Largest reply to accept.
    """

    def __init__(self, member: Member, stream: Stream, max_message_bytes: int) -> None:
        self._member = member
        self._stream = stream
        self._limit = max_message_bytes
        self._arriving: Call | None = None
        self._recycler = Recycler()

    async def run(self, admit: Callable[[pb.Hello], Awaitable[pb.Welcome | pb.Farewell]]) -> None:
        """Converse until either side ends the stream.

        Parameters
        ----------
        admit
            Decides on the client's introduction, and waits until the fleet is ready.

        Raises
        ------
        WireError
            The client sent what the protocol does not allow.
        """
        data = await self._stream.read()
        if data is None:
            return
        hello = parse(data).head
        if not isinstance(hello, pb.Hello):
            raise WireError("a client did not begin with a hello")
        answer = await admit(hello)
        if isinstance(answer, pb.Welcome):
            await self._take_over()
        if isinstance(answer, pb.Welcome) and self._member.partial is not None:
            sequence, assembly = self._member.partial
            answer.partial.sequence, answer.partial.received = sequence, assembly.received
        for frame in frames(answer):
            await self._stream.write(frame)
        if isinstance(answer, pb.Farewell):
            return
        member = self._member
        member.confirm(hello)
        queue: asyncio.Queue[Call | pb.Farewell] = asyncio.Queue()
        for call in member.outstanding.values():
            queue.put_nowait(call)
        member.queue = queue
        writing = asyncio.create_task(self._write(queue, hello.partial))
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            if member.queue is queue:
                member.queue = None
            for task in (reading, writing):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(reading, writing, return_exceptions=True)
            if self._arriving is not None and self._arriving.exchange is not None:
                self._arriving.exchange.interrupted(member.name)

    async def _take_over(self) -> None:
        """End the conversation on an older stream: the client has left it, even if it seems to be open."""
        older, self._member.serving = self._member.serving, asyncio.current_task()
        if older is not None and older is not self._member.serving:
            older.cancel()
            await asyncio.wait([older])

    async def _write(self, queue: asyncio.Queue[Call | pb.Farewell], partial: pb.Partial) -> None:
        # No variable here holds on to what was sent: its arrays may be large, and the next may be long in coming.
        while await self._send(await queue.get(), partial):
            pass

    async def _send(self, item: Call | pb.Farewell, partial: pb.Partial) -> bool:
        """Send one message; return whether others may follow."""
        if isinstance(item, pb.Farewell):
            for frame in frames(item):
                await self._stream.write(frame)
            return False
        if item.body is None:
            return True  # its deadline passed before it could be sent
        resume = partial.received if partial.sequence == item.sequence else 0
        item.first_sent_ns = time.perf_counter_ns()
        for frame in frames(item.head(self._member.reach), item.body, resume):
            await self._stream.write(frame)
            item.wire_down += len(frame)
        item.last_sent_ns = time.perf_counter_ns()
        return True

    async def _read(self) -> None:
        reply: pb.Reply | None = None
        assembly = Assembly(0)
        call: Call | None = None
        while (data := await self._stream.read()) is not None:
            frame = parse(data)
            if frame.head is not None:
                if not isinstance(frame.head, pb.Reply) or reply is not None:
                    raise WireError("a client sent a message that does not belong here")
                reply = frame.head
                call = self._member.outstanding.get(reply.sequence)
                assembly = self._opened(reply, len(frame.chunk), awaited=call is not None)
                if call is not None:
                    call.first_received_ns = time.perf_counter_ns()
                    self._arriving = call
                    if call.exchange is not None and not assembly.fits(frame.chunk):
                        await call.exchange.arriving(call, assembly.size)
            elif reply is None:
                raise WireError("a client sent data that belongs to no reply")
            if call is None:
                assembly.discard(frame.chunk)  # too late to count: not worth the memory
            else:
                assembly.add(frame.chunk)
                call.wire_up += len(data)
                self._member.partial = (call.sequence, assembly)
            if assembly.complete:
                if call is not None:
                    self._received(call, reply, assembly)
                else:
                    self._late(reply.sequence)
                reply, call, self._arriving, self._member.partial = None, None, None, None
                assembly = Assembly(0)  # let go of the body

    def _opened(self, reply: pb.Reply, first: int, awaited: bool) -> Assembly:
        """Return where the body of a reply goes: what an earlier stream left of it, if it goes on there."""
        size = body_bytes(reply.payload, self._limit)
        told = self._member.outstanding.get(reply.sequence)
        if told is not None and told.kind == pb.TELL and size:
            raise WireError("a client returned values where it was told, not asked")
        if not reply.resume:
            # A body that is here already is looked at as a whole.
            spans = float_spans(reply.payload) if first < size else ()
            return Assembly(size, recycler=self._recycler, spans=spans)
        if not awaited:
            return Assembly(size, received=min(reply.resume, size))  # given up meanwhile: it is discarded
        sequence, assembly = self._member.partial or (0, Assembly(0))
        if sequence != reply.sequence or assembly.size != size:
            raise WireError("a client resumed a reply that the server has no part of")
        assembly.rewind(reply.resume)
        return assembly

    def _received(self, call: Call, reply: pb.Reply, assembly: Assembly) -> None:
        call.last_received_ns = time.perf_counter_ns()
        call.reply_bytes = assembly.size
        call.timing = reply.timing
        exchange = call.exchange
        if exchange is None:
            self._told(call, reply)
        elif not exchange.is_open_for(call):
            call.outcome = "late"
        elif reply.failure:
            exchange.fail(call, reply.failure)
        else:
            self._answered(exchange, call, reply, assembly)
        self._member.settle(call)

    def _answered(self, exchange: Exchange, call: Call, reply: pb.Reply, assembly: Assembly) -> None:
        try:
            values = decode(reply.payload, assembly.body())
            call.decoded_ns = time.perf_counter_ns()
            exchange.check(call.client, values, assembly.finite)
        except WireError as error:
            exchange.fail(call, str(error))
        else:
            exchange.receive(call, values)

    def _late(self, sequence: int) -> None:
        log.info("client %s: a reply came too late and does not count", self._member.name)
        call = self._member.overdue.pop(sequence, None)
        if call is not None:
            call.outcome = "late"

    def _told(self, call: Call, reply: pb.Reply) -> None:
        call.outcome = "failed" if reply.failure else "told"
        if reply.failure:
            self._member.lose(
                f"it could not do what it was told in round {call.round}, phase {call.phase!r}: {reply.failure}"
            )
