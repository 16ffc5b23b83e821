"""The server's side of a client stream: one ``Work`` call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from fenchel.common.errors import WireError
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import frames, parse
from fenchel.common.wire.outline import Received
from fenchel.common.wire.reader import IncomingMessage, MessageReader
from fenchel.common.wire.stream import Stream
from fenchel.fleet.calls import Call, ReplySink
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.socket_bytes import Metered
from fenchel.fleet.metering.unsolicited import MOST_VALUES
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.disclosure.entries import Direction
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.stream.connection_bytes import ConnectionBytes

log = logging.getLogger("fenchel.server")


class ClientStream:
    """Server's side of one stream of a client. It sends the instructions in the client's record and receives replies.

    A request is sent when the reply to the one before it has begun to arrive, or was never needed. So a client that is
    slower than the rounds, or was frozen, has at most one request behind the current one.

    Parameters
    ----------
    member
        Client record.
    stream
        Frames in both directions.
    largest
        Limit on the size of a reply in bytes.
    limits
        Limits that contain the rates of unsolicited replies. Replies beyond these rates are delayed by flow control.
    disclosures
        Disclosure record of the run; ``None``: no record.
    buffer_pool
        Pool of memory for large replies. Default: a pool for this stream alone.
    budgets
        True if clients have privacy budgets. A client that reports its budget as used up receives no more requests.
    """

    def __init__(
        self,
        member: ClientRecord,
        stream: Stream,
        *,
        largest: int,
        limits: Limits,
        disclosures: DisclosureRecord | None = None,
        buffer_pool: BufferPool | None = None,
        budgets: bool = False,
    ) -> None:
        self._member = member
        self._stream = stream
        self._largest = largest
        self._arriving: Call | None = None
        self._buffer_pool = buffer_pool or BufferPool()
        self._disclosures = disclosures
        self._budgets = budgets
        self._connection = ConnectionBytes(member, stream if isinstance(stream, Metered) else None)
        self._welcomed_ns = 0
        self._queue: asyncio.Queue[int | pb.Farewell] = asyncio.Queue()
        self._unanswered = 0  # sequence number of the request that the client has not begun to answer; 0: none
        self._postponed = 0  # sequence number of the request to send after that; 0: none
        self._unsolicited = member.limit_unsolicited(limits)

    async def run(self, admit: Callable[[pb.Hello], Awaitable[pb.Welcome | pb.Farewell]]) -> None:
        """Exchange messages until either side ends the stream.

        Parameters
        ----------
        admit
            Function that admits or refuses the client by its ``Hello``, after the fleet is complete.

        Raises
        ------
        WireError
            If the client breaks the protocol.
        """
        data = await self._stream.read()
        now = time.time_ns()
        if data is None:
            return
        hello = parse(data).head
        if not isinstance(hello, pb.Hello):
            raise WireError(f"the client did not begin the stream with a hello{SAME_VERSION}")
        self._note("up", hello)
        member, answer = self._member, await admit(hello)
        if isinstance(answer, pb.Welcome):
            await self._take_over()
            if member.partial is not None:
                member.partial.announce(answer.partial)
            if hello.sent_unix_ns:
                member.clock.heard(hello.sent_unix_ns, now)
            self._welcomed_ns = answer.sent_unix_ns = time.time_ns()
        self._note("down", answer)
        for frame in frames(answer):
            await self._stream.write(frame)
        if isinstance(answer, pb.Farewell):
            return
        member.confirm(hello)
        member.attach(self._queue)
        writing = asyncio.create_task(self._write(hello.partial))
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            member.detach(self._queue)
            for task in (reading, writing):
                task.cancel()
            try:
                await asyncio.gather(reading, writing, return_exceptions=True)
            finally:
                if self._arriving is not None and self._arriving.request is not None:
                    self._arriving.request.interrupted(member.name)
                self._connection.close()

    def _note(self, direction: Direction, message: pb.Hello | pb.Welcome | pb.Farewell) -> None:
        if self._disclosures is not None:
            self._disclosures.head(direction, message)

    async def _take_over(self) -> None:
        """End an older stream of the client, which has abandoned it even if it still appears open."""
        older = self._member.serve()
        if older is not None:
            older.cancel()
            await asyncio.wait([older])

    async def _write(self, partial: pb.Partial) -> None:
        # Keep no local variable that refers to a sent message: its arrays may be large, and the wait for the next
        # message long.
        while await self._send(await self._queue.get(), partial):
            pass

    async def _send(self, what: int | pb.Farewell, partial: pb.Partial) -> bool:
        """Send one message, unless its call has ended; return False after a farewell, which is the last message."""
        if isinstance(what, pb.Farewell):
            self._note("down", what)
            for frame in frames(what):
                await self._stream.write(frame)
            return False
        item = self._member.outstanding.get(what)
        if item is None or item.body is None:
            return True  # the call ended before its instruction was sent, for example at its deadline
        if item.request is not None:
            if self._unanswered:
                self._postponed = what  # in place of an earlier request, which has ended by now
                return True
            self._unanswered = what
        resume = partial.received if partial.sequence == item.sequence else 0
        item.mark_sending(resume)
        head = item.head(self._member.low_water_mark)
        if self._disclosures is not None:
            self._disclosures.sent(item, head, item.body.payload, goes_on=resume > 0)
        for frame in frames(head, item.body, resume):
            item.count_sent_frame(len(frame))
            self._connection.count_frame(down=len(frame))
            await self._stream.write(frame)
        item.mark_sent()
        return True

    async def _read(self) -> None:
        member = self._member
        reader = MessageReader(
            self._stream, pb.Reply, "a client", self._largest, buffer_pool=self._buffer_pool, begun=member.partial
        )
        while (reply := await reader.begin()) is not None:
            self._connection.count_frame(up=reply.frame_bytes)
            call, late = await self._opened(reader, reply)
            await self._count(call, late, reply.frame_bytes)
            reader.take(reply)
            while not reply.is_complete:
                frame_bytes = await reader.more(reply)
                if not frame_bytes:
                    return
                self._connection.count_frame(up=frame_bytes)
                await self._count(call, late, frame_bytes)
            if call is not None:
                self._received(call, reply)
            else:
                self._discarded(late)
            self._arriving = None
            member.mark_reply_complete(reply.head.sequence)
            del reply, call, late  # release the body of the reply, because the next message may come late

    def _allow_next(self, sequence: int) -> None:
        """Send the postponed request, now that the client has begun to answer the one before it, or a later tell."""
        if sequence >= self._unanswered:
            self._unanswered = 0
            if self._postponed:
                self._queue.put_nowait(self._postponed)
                self._postponed = 0

    async def _count(self, call: Call | None, late: Call | None, frame_bytes: int) -> None:
        """Count a frame for its open call, or delay it by the rate limit if the reply is unsolicited."""
        if call is not None:
            call.count_received_frame(frame_bytes)
        elif late is None:
            await self._unsolicited.frame()

    async def _opened(
        self, reader: MessageReader[pb.Reply], reply: IncomingMessage[pb.Reply]
    ) -> tuple[Call | None, Call | None]:
        """Return the open call that a reply answers, after reserving memory for its body, or the closed one, if any.

        Without an open call, the reply is discarded. The number of values is checked before their descriptors are read.
        """
        head, member = reply.head, self._member
        call, answers = member.outstanding.get(head.sequence), member.call_of(head.sequence)
        self._allow_next(head.sequence)
        if answers is None:
            await self._unsolicited.reply()
        try:
            self._check_count(head, answers)
        except WireError as error:
            if call is None or call.request is None or not call.request.is_open_for(call):
                raise WireError(f"{error}; the stream of the client is closed{SAME_VERSION}") from None
            call.request.fail(call, f"{error}; do both sides run the same version of the algorithm?")
            reader.discard(reply)
            return None, None
        reader.check(reply)
        if call is None:
            reader.discard(reply)
        else:
            reader.accept(reply)
        if self._disclosures is not None:
            self._disclosures.received(member.name, head, reply.outline, answers)
        if call is None:
            return None, answers
        if not reply.is_whole and self._exceeds(call, reply.outline.size):
            reader.discard(reply)
            await self._unsolicited.reply()
            return None, None
        call.mark_receiving(reply.frame_bytes, head.resume)
        if not reply.is_whole:
            member.mark_reply_begun(reply)
            self._arriving = call
            if call.request is not None:
                await call.request.arriving(call, reply.outline.size)
                call.mark_admitted()
        return call, None

    def _check_count(self, reply: pb.Reply, answers: Call | None) -> None:
        """Raise ``WireError`` if a reply has more values than its request or the limit on unsolicited ones permits."""
        count = len(reply.payload.arrays)
        if answers is None:
            most = max(MOST_VALUES, self._member.most_values)
            if count > most:
                raise WireError(f"an unsolicited reply has {count:,} values; expected at most {most:,}")
        elif answers.most_values is not None and count > answers.most_values:
            raise WireError(f"a reply has {count:,} values; expected at most {answers.most_values}")

    def _exceeds(self, call: Call, size: int) -> bool:
        """Fail the call and return True if a reply is larger than its schema or the memory budget permits."""
        if call.request is None or not call.request.is_open_for(call):
            return False
        try:
            call.request.reservation.check(call.client, size)
        except WireError as error:
            call.request.fail(call, str(error))
            return True
        return False

    def _received(self, call: Call, message: IncomingMessage[pb.Reply]) -> None:
        reply = message.head
        call.mark_received(message.last_ns, message.assembly.size, reply.timing)
        self._member.align(call, self._welcomed_ns)
        self._connection.charge(call)
        if self._budgets and reply.spent:
            self._member.mark_spent(sanitize(reply.failure))
        request = call.request
        if request is None:
            self._confirmed(call, reply)
        elif not request.is_open_for(call):
            self._member.end_late(call)
        elif reply.failure:
            request.fail(call, sanitize(reply.failure), diverged=reply.diverged)
        else:
            self._answered(request, call, message.received())
        self._member.resolve(call)

    def _answered(self, request: ReplySink, call: Call, received: Received) -> None:
        try:
            values = received.values()
            call.mark_decoded()
            request.check(call.client, values, received.finite)
        except WireError as error:
            request.fail(call, str(error), diverged=error.diverged)
        except Exception as error:  # of the algorithm's own check
            request.abort(error)
        else:
            request.receive(call, values)

    def _discarded(self, late: Call | None) -> None:
        if late is None:
            log.info(
                "client %s: a reply that was refused, or that no open request awaits, is discarded", self._member.name
            )
            return
        log.info("client %s: a reply arrived after its deadline and does not count", self._member.name)
        self._member.end_late(late)

    def _confirmed(self, call: Call, reply: pb.Reply) -> None:
        call.end("failed" if reply.failure else "confirmed")
        if reply.failure:
            self._member.mark_lost(
                f"it could not apply a promise of round {call.round}, phase {call.phase!r}: {sanitize(reply.failure)}"
            )
