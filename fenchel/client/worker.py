"""Worker of a client, which reads instructions from the stream and writes replies."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from fenchel.client.session import Answer, Session
from fenchel.common.errors import JoinRefusedError, WireError
from fenchel.common.slots import waited_ns
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import frames, parse
from fenchel.common.wire.reader import IncomingMessage, MessageReader
from fenchel.common.wire.stream import Stream
from fenchel.proto import fenchel_pb2 as pb

_INBOX_MESSAGES = 1000  # largest number of instructions in the inbox
_INBOX_BYTES = 256 << 20  # largest size of the inbox in bytes, beyond which the client stops reading the stream
# duration in nanoseconds up to which a phase runs in the event loop: switching threads takes 250 µs
_SHORT_NS = 5_000_000


@dataclass(frozen=True)
class _Handled:
    """Answer to an instruction, with the times at which its handling began and ended, and how long it waited inside."""

    answer: Answer
    begun_ns: int
    done_ns: int
    waited_ns: int

    def stamp(self, message: IncomingMessage[pb.Instruction], welcomed_ns: int) -> None:
        """Set the time of arrival and the durations of receipt, waiting and handover, just before the reply is sent."""
        now, came, timing = time.perf_counter_ns(), message.last_ns, self.answer.head.timing
        timing.received_unix_ns = time.time_ns() - (now - came)
        timing.receive_ns = came - message.first_ns
        timing.queue_ns = self.begun_ns - came + self.waited_ns
        timing.handover_ns = now - self.done_ns
        timing.answer_ns = now - came
        timing.welcomed_ns = welcomed_ns


@dataclass
class Worker:
    """Worker that handles the instructions of one session, on one stream after another.

    Attributes
    ----------
    executor
        Executor of computation; ``None`` computes on the event loop, as in an in-process fleet.
    short_here
        True if phases that have been short so far run on the event loop, because switching to a thread would take
        longer. This is only for processes whose event loop serves nothing but clients.
    joint
        True if the client encrypts together with others, in tasks of the executor. Then phases with encryption never
        run on the event loop.
    on_answer
        Callback for each instruction, its reply and the size of the reply's body in bytes, once the reply is sent.
    """

    session: Session
    executor: Executor | None = None
    short_here: bool = False
    joint: bool = False
    on_answer: Callable[[pb.Instruction, pb.Reply, int], None] = lambda instruction, reply, size: None
    _partial: IncomingMessage[pb.Instruction] | None = None
    _running: asyncio.Future[_Handled] | None = None
    _inbox: deque[IncomingMessage[pb.Instruction]] = field(default_factory=deque)
    _buffer_pool: BufferPool = field(default_factory=BufferPool)
    _welcomed_ns: int = 0
    _latest: int | None = None  # sequence number of the instruction whose handling began last
    # decaying maximum of the handling time in nanoseconds, by phase
    _longest_ns: dict[str, float] = field(default_factory=dict)
    _taken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_begun(self) -> bool:
        """True once the handling of an instruction has begun."""
        return self._latest is not None

    async def work(self, stream: Stream) -> pb.Farewell | None:
        """Handle the instructions of a stream. Return the server's farewell, or ``None`` if the stream breaks.

        Raises
        ------
        JoinRefusedError
            If the server rejects the client.
        WireError
            If a message of the server violates the protocol.
        StorageError, CheckpointError
            If the journal cannot be written or read.
        """
        hello = self.session.hello()
        if self._partial is not None:
            self._partial.announce(hello.partial)
        hello.sent_unix_ns = time.time_ns()
        for frame in frames(hello):
            await stream.write(frame)
        data = await stream.read()
        if data is None:
            return None
        welcome = parse(data).head
        if isinstance(welcome, pb.Farewell):
            if welcome.completed:
                return welcome  # a farewell: the run completed while the client was disconnected
            raise JoinRefusedError(welcome.reason)
        if not isinstance(welcome, pb.Welcome):
            raise WireError(f"the server did not begin the stream with a welcome{SAME_VERSION}")
        self._welcomed_ns = time.time_ns() - welcome.sent_unix_ns if welcome.sent_unix_ns else 0
        self._inbox.clear()
        arrived = asyncio.Event()
        reading = asyncio.create_task(self._read(stream, arrived))
        answering = asyncio.create_task(self._answer(stream, arrived, welcome.partial))
        try:
            await asyncio.wait({reading, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()  # raise the error with which the task ended
            return reading.result()
        finally:
            for task in (reading, answering):
                task.cancel()
            await asyncio.gather(reading, answering, return_exceptions=True)

    async def _read(self, stream: Stream, arrived: asyncio.Event) -> pb.Farewell | None:
        reader = MessageReader(
            stream,
            pb.Instruction,
            "the server",
            self.session.settings.network.max_message_bytes,
            buffer_pool=self._buffer_pool,
            begun=self._partial,
        )
        while (message := await reader.begin()) is not None:
            reader.check(message)
            reader.accept(message)
            reader.take(message)
            if not message.is_complete:
                self._partial = message
            while not message.is_complete:
                if not await reader.more(message):
                    return None
            if self._partial is not None and self._partial.head.sequence <= message.head.sequence:
                self._partial = None
            self._inbox.append(message)
            del message  # free the body while waiting for the next message
            arrived.set()
            await asyncio.sleep(0)  # let the handling begin before the next, slow read
            while self._is_full():
                self._taken.clear()
                await self._taken.wait()
        return reader.farewell

    def _is_full(self) -> bool:
        """Return True if the inbox has reached a limit. A single instruction may exceed the limit on bytes."""
        waiting = len(self._inbox)
        held = sum(each.assembly.size for each in self._inbox) if waiting > 1 else 0
        return waiting >= _INBOX_MESSAGES or held > _INBOX_BYTES

    async def _answer(self, stream: Stream, arrived: asyncio.Event, partial: pb.Partial) -> None:
        while True:
            while self._inbox:
                self._taken.set()
                await self._respond(stream, self._inbox.popleft(), partial)
            arrived.clear()
            await arrived.wait()

    async def _respond(self, stream: Stream, message: IncomingMessage[pb.Instruction], partial: pb.Partial) -> None:
        instruction = message.head
        if self._void(instruction):
            return
        handled = await self._handled(message)
        reply, body = handled.answer.head, handled.answer.body
        handled.stamp(message, self._welcomed_ns)
        self._welcomed_ns = 0
        resume = partial.received if partial.sequence == instruction.sequence else 0
        for frame in frames(reply, body, resume):
            await stream.write(frame)
        self.on_answer(instruction, reply, 0 if body is None else body.size)

    def _void(self, head: pb.Instruction) -> bool:
        """Return True if a later instruction shows that the effect of this instruction will not count."""
        return any(later.head.base < head.sequence for later in self._inbox if head.kind != pb.TELL)

    async def _handled(self, message: IncomingMessage[pb.Instruction]) -> _Handled:
        if self._running is not None and not self._running.done():
            # Wait for an instruction from an earlier stream. Its reply goes to the journal, and the server may request
            # it again.
            await asyncio.wait([self._running])
        head = message.head
        again, self._latest = self._latest == head.sequence, head.sequence
        received = message.received()

        def handle() -> _Handled:
            # An instruction repeated after a disconnect waited only for its own handling, which is already counted.
            begun = message.last_ns if again else time.perf_counter_ns()
            waited = waited_ns()
            answer = self.session.handle(head, received)
            handled = _Handled(answer, begun, time.perf_counter_ns(), waited_ns() - waited)
            # Skip stored replies, which take no time. Skip failures, because instructions of unknown phases fail, and a
            # server could fill the dictionary with them.
            timing = answer.head.timing
            apart = self.joint and (timing.encryptions or timing.decryptions)
            if timing.compute_ns and not answer.head.failure and not apart:
                took = handled.done_ns - begun
                self._longest_ns[head.phase] = max(took, 0.9 * self._longest_ns.get(head.phase, 0.0))
            return handled

        short = self.short_here and self._longest_ns.get(head.phase, math.inf) < _SHORT_NS
        if self.executor is None or short:
            return handle()
        self._running = asyncio.get_running_loop().run_in_executor(self.executor, handle)
        return await asyncio.shield(self._running)
