"""The server's record of one client, which outlives the client's connections.

The record numbers the instructions, holds the base (the last instruction whose effect counts), and keeps unanswered
instructions, so that a client that reconnects receives them again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fenchel.common.accounting.accountant import Release
from fenchel.common.wire.frames import Body
from fenchel.common.wire.reader import IncomingMessage
from fenchel.fleet.availability import Availability
from fenchel.fleet.calls import Call, ReplySink
from fenchel.fleet.metering.clock_offset import Clock
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.socket_bytes import ZERO, SocketBytes
from fenchel.fleet.metering.throughput import Throughput
from fenchel.fleet.metering.unsolicited import UnsolicitedReplyLimiter
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")

_CALL_BYTES = 1024  # approximate memory in bytes of an instruction without its body

EPOCH_BITS = 32
"""Number of bits of a sequence number within an epoch. A resumed server begins a new epoch at a multiple of 2**32."""


@dataclass
class ClientRecord:
    """Record of one client of the run.

    Attributes
    ----------
    name
        Id of the client.
    shard
        Description of the client's data; ``None`` before the client has joined.
    base
        Sequence number of the last instruction whose effect counts; 0: none.
    low_water_mark
        Base in the older of the two checkpoints on disk. No resumed run goes back further.
    next_sequence
        Sequence number of the next instruction.
    lost
        Reason why the client is out of the run; ``None``: it is not.
    spent
        The client's statement that its privacy budget is used up; ``None``: it is not. The client receives no more
        requests in this run.
    release
        Noise and sampling of the client's uploads under differential privacy; ``None``: not determined yet.
    uploads
        Number of uploads that the client was asked for, by their noise and sampling, which new settings of a resumed
        run may change.
    outstanding
        Calls of the instructions that are not settled, by sequence number.
    owed_bytes
        Memory in bytes of the promises (``tell`` instructions) that the client has not confirmed.
    streams
        Number of streams that the client has opened.
    changed_unix
        Time of the last connection or disconnection, in seconds since 1970.
    queue
        Queue of the open stream; ``None`` while the client is disconnected. It holds sequence numbers rather than
        instructions, so that instructions that are settled before they were sent take no memory.
    farewell
        Message that ends the client's participation; ``None``: not sent yet.
    serving
        Task of the client's latest stream.
    overdue
        Call of the last request that was sent to the client and did not wait for its reply, which may still come.
    availability
        Failure detector: missed deadlines and rounds.
    partial
        Received part of a reply that is arriving, or whose stream broke.
    clock
        Estimate of the client's clock offset.
    throughput_down, throughput_up
        Estimates of the throughput to and from the client.
    unsolicited
        Rate limits of unsolicited replies; ``None`` before the client has joined.
    most_values
        Largest number of values that any request to the client has asked for.
    carried_over
        Socket bytes of the client's connections that are not assigned to an answered call yet.
    """

    name: str
    shard: pb.ShardDescription | None = None
    base: int = 0
    low_water_mark: int = 0
    next_sequence: int = 1
    lost: str | None = None
    spent: str | None = None
    release: Release | None = None
    uploads: Counter[Release] = field(default_factory=Counter)
    outstanding: dict[int, Call] = field(default_factory=dict)
    owed_bytes: int = 0
    streams: int = 0
    changed_unix: float = field(default_factory=time.time)
    queue: asyncio.Queue[int | pb.Farewell] | None = None
    farewell: pb.Farewell | None = None
    serving: asyncio.Task[None] | None = None
    overdue: Call | None = None
    availability: Availability = field(default_factory=Availability)
    partial: IncomingMessage[pb.Reply] | None = None
    clock: Clock = field(default_factory=Clock)
    throughput_down: Throughput = field(default_factory=Throughput)
    throughput_up: Throughput = field(default_factory=Throughput)
    unsolicited: UnsolicitedReplyLimiter | None = None
    most_values: int = 0
    carried_over: SocketBytes = ZERO
    _left_ns: int = 0

    def __post_init__(self) -> None:
        self.availability = replace(self.availability, client=self.name)

    @property
    def takes_part(self) -> bool:
        """True if the client is neither lost nor without privacy budget."""
        return self.lost is None and self.spent is None

    @property
    def connected(self) -> bool:
        """True if the client's stream is open."""
        return self.queue is not None

    def attach(self, queue: asyncio.Queue[int | pb.Farewell]) -> None:
        """Connect the record to the queue of a new stream, and queue all outstanding instructions and the farewell."""
        for call in self.outstanding.values():
            queue.put_nowait(call.sequence)
            call.count_disconnected_time(self._left_ns)
        if self.farewell is not None:  # the farewell was set while the stream opened
            queue.put_nowait(self.farewell)
        self.queue, self.changed_unix = queue, time.time()
        self.streams += 1

    def detach(self, queue: asyncio.Queue[int | pb.Farewell]) -> None:
        """Disconnect the record from the queue of a stream that has ended, unless a newer stream has replaced it."""
        if self.queue is queue:
            self.queue, self.changed_unix, self._left_ns = None, time.time(), time.perf_counter_ns()

    def serve(self) -> asyncio.Task[None] | None:
        """Make the current task the one that serves the client, and return the task that it replaces, if any."""
        older, self.serving = self.serving, asyncio.current_task()
        return None if older is self.serving else older

    def limit_unsolicited(self, limits: Limits) -> UnsolicitedReplyLimiter:
        """Return the client's rate limiter of unsolicited replies, which a reconnect does not reset."""
        if self.unsolicited is None:
            self.unsolicited = UnsolicitedReplyLimiter(self.name, limits)
        return self.unsolicited

    def mark_reply_begun(self, reply: IncomingMessage[pb.Reply]) -> None:
        """Keep the received part of a reply of several frames, so that it can be resumed."""
        self.partial = reply

    def mark_reply_complete(self, sequence: int) -> None:
        """Drop the received part of this or an earlier reply, now that reply ``sequence`` has arrived in full."""
        if self.partial is not None and self.partial.head.sequence <= sequence:
            self.partial = None

    def carry(self, socket_bytes: SocketBytes) -> None:
        """Set the socket bytes that are not assigned to an answered call yet."""
        self.carried_over = socket_bytes

    def align(self, call: Call, welcomed_ns: int) -> None:
        """Update the estimates of clock offset and throughput from an answered call, and store both in the call.

        Parameters
        ----------
        call
            Call with the client's times.
        welcomed_ns
            Time at which this server sent the welcome of the stream, in nanoseconds since 1970; 0: unknown.
        """
        timing, clock = call.timing or pb.Timing(), self.clock
        if timing.welcomed_ns and welcomed_ns:
            clock.sent(welcomed_ns, welcomed_ns + timing.welcomed_ns)
        received, replied = timing.received_unix_ns, timing.received_unix_ns + timing.answer_ns
        if received and not call.interrupted:
            clock.sent(call.unix_ns(call.first_sent_ns), received - timing.receive_ns)
            clock.heard(replied, call.unix_ns(call.first_received_ns))
        offset = clock.at(call.unix_ns(call.last_received_ns))
        if offset is None or not received or call.interrupted:
            call.align(offset, 0.0)
            return
        down = (received + offset.ns - call.unix_ns(call.first_sent_ns)) / 1e9
        up = (call.unix_ns(call.last_received_ns) - replied - offset.ns - call.held_ns) / 1e9
        spread = (call.last_received_ns - call.first_received_ns - call.held_ns) / 1e9
        serialisation = self.throughput_down.serialisation(
            call.wire_down, call.opening_down, timing.receive_ns / 1e9, down
        ) + self.throughput_up.serialisation(call.wire_up, call.opening_up, spread, up)
        call.align(offset, serialisation)

    def raise_low_water_mark(self, base: int) -> None:
        """Set the low-water mark to the base in the older of the two checkpoints on disk."""
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
        """Queue an instruction for the client, and return its call.

        The effect of a ``tell`` counts at once, that of an ``ask`` after :meth:`count`.

        Parameters
        ----------
        phase
            Name of the phase.
        t
            Number of the round.
        kind
            Kind of the instruction.
        body
            Encoded values.
        request
            Request that the reply belongs to; ``None`` for a ``tell``.
        traceparent
            W3C trace context; empty without tracing.

        Raises
        ------
        RuntimeError
            If an earlier request to the client is still open.
        """
        last = next(reversed(self.outstanding.values()), None)
        if last is not None and last.request is not None:
            raise RuntimeError(
                f"phase {phase!r} addresses client {self.name}, which still has an open request; await one request "
                "to a client before the next"
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
        if self.queue is not None:
            self.queue.put_nowait(call.sequence)
        return call

    def call_of(self, sequence: int) -> Call | None:
        """Return the call that a reply with this sequence number answers, in time or late; ``None``: unsolicited."""
        late = self.overdue is not None and self.overdue.sequence == sequence
        return self.outstanding.get(sequence) or (self.overdue if late else None)

    def mark_overdue(self, call: Call) -> None:
        """Record that a call is closed, whose reply may still come if the instruction was sent."""
        if call.first_sent_ns:
            self.overdue = call

    def end_late(self, call: Call) -> None:
        """Record that the reply to a closed call has arrived."""
        call.end("late")
        if self.overdue is call:
            self.overdue = None

    def enqueue(self, call: Call) -> None:
        """Keep an instruction until it is settled."""
        self.outstanding[call.sequence] = call
        if call.kind == pb.TELL:
            self.owed_bytes += call.body_bytes + _CALL_BYTES

    def count(self, call: Call) -> None:
        """Make the effect of an answered request count.

        The reply also confirms all promises: they precede the request, so the client has applied them. A request that
        changes no state (``INSPECT``) has no effect to count.
        """
        if call.kind == pb.ASK:
            self.base = call.sequence
            self._kept(self.pending_tells())

    def resolve(self, call: Call) -> None:
        """Settle an instruction, so that it is not sent again, and release its memory."""
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
        """Return True if a client with this ``Hello`` can restore the state from which the run continues."""
        if hello.stateless:
            return True
        kept = {0, *hello.snapshots}
        first = next(self.pending_tells(), None)
        if first is None:
            return self.base in kept
        return first.base in kept or any(call.sequence in kept for call in self.pending_tells())

    def confirm(self, hello: pb.Hello) -> None:
        """Settle the promises before the last one that the client's journal holds.

        Each promise builds on the one before it, so the last one in the journal proves that the earlier ones were
        applied. The journal may have dropped those after a checkpoint that made the last promise the base.
        """
        tells = list(self.pending_tells())
        held = [place for place, call in enumerate(tells) if call.sequence in hello.snapshots]
        self._kept(tells[: held[-1] if held else 0])

    def _kept(self, tells: Iterable[Call]) -> None:
        for call in list(tells):
            call.end("confirmed")
            self.resolve(call)

    def describe(self, shard: pb.ShardDescription) -> None:
        """Store the client's description of its data."""
        self.shard = shard

    def protect(self, release: Release | None) -> None:
        """Store noise and sampling of the client's uploads from now on."""
        self.release = release

    def forget_loss(self) -> None:
        """Let a lost client take part again; its next hello shows whether its journal is available."""
        self.lost = None

    def mark_lost(self, reason: str) -> None:
        """Remove the client from the run: fail its open request, drop all its instructions and send a farewell."""
        log.error(
            "client %s is lost: %s. participation.on_lost_state determines whether the run stops, or continues "
            "without the client",
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
        """Exclude the client from requests, because its privacy budget is used up. It stays connected."""
        if self.spent is None:
            log.warning("client %s has spent its privacy budget; it receives no more requests in this run", self.name)
        self.spent = reason

    def say_farewell(self, farewell: pb.Farewell) -> None:
        """End the client's participation with a message, sent now or as soon as the client is connected."""
        self.farewell = farewell
        if self.queue is not None:
            self.queue.put_nowait(farewell)
