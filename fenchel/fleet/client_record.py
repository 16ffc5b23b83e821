"""The server's record of one client, which outlives its connections.

It numbers the instructions, knows which of them counts last (the base), and keeps those that are not
answered yet, so that a client that comes back gets them again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fenchel.common.wire.frames import Body
from fenchel.common.wire.reader import IncomingMessage
from fenchel.fleet.availability import Availability
from fenchel.fleet.calls import Call, ReplySink
from fenchel.fleet.metering.clock_offset import Clock
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.socket_bytes import NOTHING, SocketBytes
from fenchel.fleet.metering.throughput import Throughput
from fenchel.fleet.metering.unsolicited import UnsolicitedReplyLimiter
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")

_CALL_BYTES = 1024  # what an instruction takes beside its body, about

EPOCH_BITS = 32
"""Sequence numbers of a resumed run start above all that the run before it can have used."""


@dataclass
class ClientRecord:
    """One client of the run.

    Attributes
    ----------
    name
        The client's id.
    index
        Its place among all clients, by order of ids.
    shard
        What it said of its data; ``None`` until it has come.
    base
        The last instruction whose effect counts; 0: none.
    low_water_mark
        The base in the older of the two checkpoints that are on disk: no run can go back behind it.
    lost
        Why this client is out of the run, or ``None``.
    spent
        How it said that its privacy budget is spent, or ``None``: it is asked for nothing more in this run.
    owed_bytes
        What the promises take that it has not confirmed yet.
    streams
        How often the client has come.
    changed_unix
        When it last came or went away.
    queue
        Feeds the stream that is open now, with numbers of instructions: of what is settled before it could be sent,
        nothing is kept. ``None`` while the client is away.
    farewell
        What ends the client's part, once that is said.
    serving
        Converses on the client's latest stream.
    overdue
        Questions whose deadline has passed, until the next one is asked.
    availability
        How it keeps deadlines, and which rounds it has missed lately.
    partial
        The beginning of a reply that is arriving, or whose stream broke.
    clock
        How far the client's clock is from this process's.
    unsolicited
        Rate limits of what it sends unasked; ``None`` until it has come.
    most_values
        The largest number of values that a question to it asked for.
    carried
        What crossed the client's connections and belongs to calls that are not answered yet.
    """

    name: str
    index: int
    shard: pb.ShardDescription | None = None
    base: int = 0
    low_water_mark: int = 0
    next_sequence: int = 1
    lost: str | None = None
    spent: str | None = None
    outstanding: dict[int, Call] = field(default_factory=dict)
    owed_bytes: int = 0
    streams: int = 0
    changed_unix: float = field(default_factory=time.time)
    queue: asyncio.Queue[int | pb.Farewell] | None = None
    farewell: pb.Farewell | None = None
    serving: asyncio.Task[None] | None = None
    overdue: dict[int, Call] = field(default_factory=dict)
    availability: Availability = field(default_factory=Availability)
    partial: IncomingMessage[pb.Reply] | None = None
    clock: Clock = field(default_factory=Clock)
    throughput_down: Throughput = field(default_factory=Throughput)
    throughput_up: Throughput = field(default_factory=Throughput)
    unsolicited: UnsolicitedReplyLimiter | None = None
    most_values: int = 0
    carried: SocketBytes = NOTHING
    _left_ns: int = 0

    def __post_init__(self) -> None:
        self.availability.client = self.name

    @property
    def takes_part(self) -> bool:
        """Whether the run asks this client: it is not lost, and its privacy budget is not spent."""
        return self.lost is None and self.spent is None

    @property
    def connected(self) -> bool:
        """Whether the client's stream is open."""
        return self.queue is not None

    def attach(self, queue: asyncio.Queue[int | pb.Farewell]) -> None:
        """Feed a stream of the client from now on, first with all that is outstanding."""
        for call in self.outstanding.values():
            queue.put_nowait(call.sequence)
            call.count_disconnected_time(self._left_ns)
        if self.farewell is not None:  # said while the stream was being opened
            queue.put_nowait(self.farewell)
        self.queue, self.changed_unix = queue, time.time()
        self.streams += 1

    def detach(self, queue: asyncio.Queue[int | pb.Farewell]) -> None:
        """Note that a stream is over; the client is away, unless it has come on another one."""
        if self.queue is queue:
            self.queue, self.changed_unix, self._left_ns = None, time.time(), time.perf_counter_ns()

    def serve(self) -> asyncio.Task[None] | None:
        """Note that this task converses with the client from now on; return the one that did before, if another."""
        older, self.serving = self.serving, asyncio.current_task()
        return None if older is self.serving else older

    def limit_unsolicited(self, limits: Limits) -> UnsolicitedReplyLimiter:
        """Return the rate limits of what it sends unasked; a client that comes back does not begin anew."""
        if self.unsolicited is None:
            self.unsolicited = UnsolicitedReplyLimiter(self.name, limits)
        return self.unsolicited

    def mark_reply_begun(self, reply: IncomingMessage[pb.Reply]) -> None:
        """Note that a reply of several frames has begun to arrive."""
        self.partial = reply

    def mark_reply_complete(self, sequence: int) -> None:
        """Note that all of a reply is here, so that none before it is resumed."""
        if self.partial is not None and self.partial.head.sequence <= sequence:
            self.partial = None

    def carry(self, crossed: SocketBytes) -> None:
        """Keep what has crossed its connections and belongs to calls that are not answered yet."""
        self.carried = crossed

    def raise_low_water_mark(self, base: int) -> None:
        """Note the base in the older of the two checkpoints that are on disk."""
        self.low_water_mark = base

    def post(
        self,
        phase: str,
        t: int,
        kind: pb.Kind.ValueType,
        body: Body,
        request: ReplySink | None = None,
        *,
        traceparent: str = "",
    ) -> Call:
        """Queue an instruction.

        A told one counts from now on. An asked one counts once :meth:`count` says so.

        Raises
        ------
        RuntimeError
            Another question to the client is still open.
        """
        last = next(reversed(self.outstanding.values()), None)
        if last is not None and last.request is not None:
            raise RuntimeError(
                f"phase {phase!r} is for client {self.name}, to which another question is still open: "
                "await one exchange with a client before the next"
            )
        call = Call(
            client=self.name,
            sequence=self.next_sequence,
            base=self.base,
            phase=phase,
            round=t,
            kind=kind,
            body=body,
            request=request,
            traceparent=traceparent,
        )
        self.next_sequence += 1
        self.most_values = max(self.most_values, call.most_values or 0)
        if kind == pb.TELL:
            self.base = call.sequence
        self.enqueue(call)
        self.overdue.clear()
        if self.queue is not None:
            self.queue.put_nowait(call.sequence)
        return call

    def enqueue(self, call: Call) -> None:
        """Hold on to an instruction until it is settled."""
        self.outstanding[call.sequence] = call
        if call.kind == pb.TELL:
            self.owed_bytes += call.body_bytes + _CALL_BYTES

    def count(self, call: Call) -> None:
        """Let the effect of an answered question count.

        Its answer builds on all promises, and so proves them kept, confirmed or not: none was made since it
        was asked.
        """
        if call.kind == pb.ASK:
            self.base = call.sequence
            self._kept(self.pending_tells())

    def resolve(self, call: Call) -> None:
        """Stop waiting for an instruction: it was answered, or its deadline has passed."""
        if self.outstanding.pop(call.sequence, None) is not None:
            if self.queue is None:
                call.count_disconnected_time(self._left_ns)
            if call.kind == pb.TELL:
                self.owed_bytes -= call.body_bytes + _CALL_BYTES
        if self.partial is not None and self.partial.head.sequence == call.sequence:
            self.partial.assembly.let_go()
        call.let_go()

    def pending_tells(self) -> Iterator[Call]:
        """Yield the promises that the client has not confirmed yet, in order."""
        return (call for call in self.outstanding.values() if call.kind == pb.TELL)

    def can_restore(self, hello: pb.Hello) -> bool:
        """Whether a client that introduces itself so still has the state that the run counts on."""
        if hello.stateless:
            return True
        kept = {0, *hello.snapshots}
        first = next(self.pending_tells(), None)
        if first is None:
            return self.base in kept
        return first.base in kept or any(call.sequence in kept for call in self.pending_tells())

    def confirm(self, hello: pb.Hello) -> None:
        """Settle the promises that a client has kept before the last one that its journal holds.

        Each builds on the one before it, so that one in the journal proves those before it done. The
        journal may have dropped them, where a checkpoint made the last promise the base.
        """
        tells = list(self.pending_tells())
        held = [place for place, call in enumerate(tells) if call.sequence in hello.snapshots]
        self._kept(tells[: held[-1] if held else 0])

    def _kept(self, tells: Iterable[Call]) -> None:
        for call in list(tells):
            call.end("told")
            self.resolve(call)

    def mark_lost(self, reason: str) -> None:
        """Take the client out of the run: its state cannot be restored."""
        log.error(
            "client %s is lost: %s (participation.on_lost_state: the run stops, or goes on without it)",
            self.name,
            reason,
        )
        self.lost = reason
        for call in list(self.outstanding.values()):
            if call.request is not None:
                call.request.fail(call, reason)
        self.outstanding.clear()
        self.owed_bytes = 0
        self.say_farewell(pb.Farewell(reason=f"this client is out of the run: {reason}"))

    def mark_spent(self, reason: str) -> None:
        """Ask the client for nothing more: its privacy budget is spent. It stays connected until the run is over."""
        if self.spent is None:
            log.warning("client %s has spent its privacy budget; it is asked for nothing more in this run", self.name)
        self.spent = reason

    def say_farewell(self, farewell: pb.Farewell) -> None:
        """End the client's part, now or as soon as it is connected."""
        self.farewell = farewell
        if self.queue is not None:
            self.queue.put_nowait(farewell)
