"""A client's side of the Work stream: instructions in, replies out."""

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
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import frames, parse
from fenchel.common.wire.reader import IncomingMessage, MessageReader
from fenchel.common.wire.stream import Stream
from fenchel.proto import fenchel_pb2 as pb

_INBOX_MESSAGES = 1000  # instructions that wait for their turn
_INBOX_BYTES = 256 << 20  # and what they may take; then the next ones wait on the wire

_SHORT_NS = 5_000_000  # the hop to another thread and back takes a quarter of a millisecond


@dataclass
class _Instruction:
    """An instruction that has arrived; when its work began and ended."""

    message: IncomingMessage[pb.Instruction]
    begun_ns: int = 0
    done_ns: int = 0

    @property
    def head(self) -> pb.Instruction:
        return self.message.head

    def stamp(self, timing: pb.Timing) -> None:
        """Note when the instruction came and how long it waited; the reply is about to be sent."""
        now, came = time.perf_counter_ns(), self.message.last_ns
        timing.received_unix_ns = time.time_ns() - (now - came)
        timing.receive_ns = came - self.message.first_ns
        timing.queue_ns = self.begun_ns - came
        timing.handover_ns = now - self.done_ns
        timing.answer_ns = now - came


@dataclass
class Worker:
    """Runs one session over one stream after another.

    Attributes
    ----------
    executor
        Where it is done, so that the event loop stays free; ``None``: on the event loop (an in-process fleet).
    short_here
        Do phases that have been short so far on the event loop all the same: the hop would take longer than they do.
        For a process whose event loop serves nobody but clients.
    on_instruction
        Called with each instruction before it is handled (progress for people).
    on_answer
        Called with each instruction, its reply and the bytes of the reply's body, once that is on its way.
    """

    session: Session
    executor: Executor | None = None
    short_here: bool = False
    on_instruction: Callable[[pb.Instruction], None] | None = None
    on_answer: Callable[[pb.Instruction, pb.Reply, int], None] = lambda instruction, reply, size: None
    _partial: IncomingMessage[pb.Instruction] | None = None
    _running: asyncio.Future[Answer] | None = None
    _inbox: deque[_Instruction] = field(default_factory=deque)
    _buffer_pool: BufferPool = field(default_factory=BufferPool)
    _welcomed_ns: int = 0
    _latest: int = 0  # the last instruction that was begun
    _longest_ns: dict[str, float] = field(default_factory=dict)  # of each phase, and lately
    _taken: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, stream: Stream) -> pb.Farewell | None:
        """Handle instructions until the server says farewell or the stream breaks (``None``)."""
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
                return welcome  # the run ended while this client was away
            raise JoinRefusedError(welcome.reason)
        if not isinstance(welcome, pb.Welcome):
            raise WireError(f"the server did not begin with a welcome{SAME_VERSION}")
        self._welcomed_ns = time.time_ns() - welcome.sent_unix_ns if welcome.sent_unix_ns else 0
        self._inbox.clear()
        arrived = asyncio.Event()
        reading = asyncio.create_task(self._read(stream, arrived))
        answering = asyncio.create_task(self._answer(stream, arrived, welcome.partial))
        try:
            await asyncio.wait({reading, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()  # only ever ends with an error
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
            self._inbox.append(_Instruction(message))
            del message  # the next may be long in coming: let go of the body
            arrived.set()
            await asyncio.sleep(0)  # the answer begins before the next frame is asked for, which takes a while
            while self._is_full():
                self._taken.clear()
                await self._taken.wait()
        return reader.farewell

    def _is_full(self) -> bool:
        """Return whether the rest must wait on the wire; one instruction may be of any size."""
        waiting = len(self._inbox)
        held = sum(each.message.assembly.size for each in self._inbox) if waiting > 1 else 0
        return waiting >= _INBOX_MESSAGES or held > _INBOX_BYTES

    async def _answer(self, stream: Stream, arrived: asyncio.Event, partial: pb.Partial) -> None:
        while True:
            while self._inbox:
                self._taken.set()
                await self._respond(stream, self._inbox.popleft(), partial)
            arrived.clear()
            await arrived.wait()

    async def _respond(self, stream: Stream, instruction: _Instruction, partial: pb.Partial) -> None:
        if self._void(instruction.head):
            return
        answer = await self._handled(instruction)
        resume = partial.received if partial.sequence == instruction.head.sequence else 0
        instruction.stamp(answer.head.timing)
        answer.head.timing.welcomed_ns, self._welcomed_ns = self._welcomed_ns, 0
        for frame in frames(answer.head, answer.body, resume):
            await stream.write(frame)
        self.on_answer(instruction.head, answer.head, 0 if answer.body is None else answer.body.size)

    def _void(self, head: pb.Instruction) -> bool:
        """Whether a later instruction already says that this one's effect will not count."""
        return any(later.head.base < head.sequence for later in self._inbox if head.kind != pb.TELL)

    async def _handled(self, instruction: _Instruction) -> Answer:
        if self._running is not None and not self._running.done():
            # Begun for an earlier stream; its answer is stored, and asked for again if it still matters.
            await asyncio.wait([self._running])
        head = instruction.head
        again, self._latest = self._latest == head.sequence, head.sequence
        if self.on_instruction is not None:
            self.on_instruction(head)
        received = instruction.message.received()

        def handle() -> Answer:
            # Sent again after a stream broke: it waited for nothing but its own work, which is accounted for.
            instruction.begun_ns = instruction.message.last_ns if again else time.perf_counter_ns()
            answer = self.session.handle(head, received, pb.Timing())
            instruction.done_ns = time.perf_counter_ns()
            # Not of a stored answer, which takes no time; and a phase that there is not would only fill the memory.
            if answer.head.timing.compute_ns and not answer.head.failure:
                took = instruction.done_ns - instruction.begun_ns
                self._longest_ns[head.phase] = max(took, 0.9 * self._longest_ns.get(head.phase, 0.0))
            return answer

        short = self.short_here and self._longest_ns.get(head.phase, math.inf) < _SHORT_NS
        if self.executor is None or short:
            return handle()
        self._running = asyncio.get_running_loop().run_in_executor(self.executor, handle)
        return await asyncio.shield(self._running)
