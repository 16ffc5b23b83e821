"""Calls: one instruction to one client and its reply, with time stamps at each boundary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fenchel.common.wire.frames import Body
from fenchel.common.wire.schema import Form
from fenchel.common.wire.values import Value
from fenchel.fleet.memory_budget import Reservation
from fenchel.fleet.metering.clock_offset import Offset
from fenchel.fleet.metering.socket_bytes import SocketBytes
from fenchel.proto import fenchel_pb2 as pb

Outcome = Literal["counted", "late", "failed", "unanswered", "promised", "confirmed"]
"""Outcome of a call. A ``tell`` is ``promised`` until the client confirms it."""


class ReplySink(Protocol):
    """Interface of the request to which a call belongs, implemented in ``fenchel/fleet/request.py``.

    Attributes
    ----------
    forms
        Declared form of each value of the replies, by name.
    reservation
        Memory reservation for the replies.
    values
        Number of values of each reply; ``None``: any number.
    started_ns, posted_ns, ended_ns
        Stamps of the performance counter at the request's creation, after its last instruction was queued, and at its
        end; 0: not yet.
    """

    forms: Mapping[str, Form]
    reservation: Reservation
    values: int | None
    started_ns: int
    posted_ns: int
    ended_ns: int

    def is_open_for(self, call: Call) -> bool:
        """Return True if a reply to this call would still count."""
        ...

    def check(self, client: str, values: Mapping[str, Value], finite: bool, /) -> None:
        """Raise ``PayloadError`` for a reply that does not match the schema."""
        ...

    async def arriving(self, call: Call, size: int) -> None:
        """Register a reply that has begun to arrive, and wait until there is memory for its body."""
        ...

    def interrupted(self, client: str) -> None:
        """Register that the client's stream broke while its reply was arriving."""
        ...

    def receive(self, call: Call, values: dict[str, Value]) -> None:
        """Count a reply that has been checked."""
        ...

    def fail(self, call: Call, reason: str, *, diverged: bool = False) -> None:
        """Register the failure of a client; ``diverged`` marks values that are not finite."""
        ...

    def abort(self, error: Exception) -> None:
        """End the request with an error of the algorithm's own functions."""
        ...


@dataclass(slots=True, kw_only=True)
class Call:
    """An instruction to one client, with its outcome, times and sizes.

    Attributes ending in ``_ns`` are stamps of this process's performance counter in nanoseconds; 0: not yet.
    ``queued_unix_ns`` is a Unix time. Three attributes are durations. ``held_ns``: the reply waited on the wire for
    memory. ``away_ns``: the client had no stream open before the first byte was sent. ``broken_ns``: the client had no
    stream open after that.

    Attributes
    ----------
    base
        Sequence number of the client's last instruction whose effect counted when this one was queued.
    first_sent_ns
        Stamp of the beginning of the first transmission, also if the instruction was sent again.
    taken_ns
        Stamp of the moment when the reply had been checked and passed to the collector.
    interrupted
        True if a stream broke before the reply was complete.
    opening_down, opening_up
        Bytes of the first frame of the instruction and of its reply.
    body_bytes, reply_bytes
        Bytes of the payloads of the instruction and of its reply.
    wire_down, wire_up
        Bytes of all frames sent and received, repeated transmissions included.
    timing
        Times that the client reported with its reply; ``None`` without a reply.
    offset
        Estimated offset of the two clocks when the reply arrived; ``None``: unknown.
    serialisation
        Transmission time of both messages in seconds, without propagation delay.
    socket_bytes
        Socket bytes of the client's connection for this call; ``None``: unknown.
    kept_out
        True if the server had no memory for the reply, which is not a failure of the client.
    recorded
        True if the row of the call has been written. A promise may be confirmed after that.
    traceparent
        W3C trace context of the request; empty without tracing.
    """

    client: str
    sequence: int
    base: int
    phase: str
    round: int
    kind: pb.Kind.ValueType
    body: Body | None
    request: ReplySink | None = None
    queued_unix_ns: int = field(default_factory=time.time_ns)
    queued_ns: int = field(default_factory=time.perf_counter_ns)
    first_sent_ns: int = 0
    last_sent_ns: int = 0
    first_received_ns: int = 0
    last_received_ns: int = 0
    held_ns: int = 0
    away_ns: int = 0
    broken_ns: int = 0
    decoded_ns: int = 0
    taken_ns: int = 0
    interrupted: bool = False
    opening_down: int = 0
    opening_up: int = 0
    body_bytes: int = 0
    reply_bytes: int = 0
    wire_down: int = 0
    wire_up: int = 0
    timing: pb.Timing | None = None
    offset: Offset | None = None
    serialisation: float = 0.0
    socket_bytes: SocketBytes | None = None
    kept_out: bool = False
    recorded: bool = False
    traceparent: str = ""
    outcome: Outcome = "unanswered"

    def __post_init__(self) -> None:
        if self.body is not None:
            self.body_bytes = self.body.size
        if self.kind == pb.TELL:
            self.outcome = "promised"

    @property
    def ended_ns(self) -> int:
        """Stamp of the end of the call's request; 0: not yet, or no request."""
        return 0 if self.request is None else self.request.ended_ns

    @property
    def most_values(self) -> int | None:
        """Largest number of values in the reply: 0 for a ``tell``; ``None``: any number."""
        if self.kind == pb.TELL:
            return 0
        return None if self.request is None else self.request.values

    def mark_sending(self, resume: int) -> None:
        """Stamp the start of the first transmission; mark the call as interrupted if this one repeats or resumes it."""
        self.interrupted = self.interrupted or self.first_sent_ns > 0 or resume > 0
        self.first_sent_ns = self.first_sent_ns or time.perf_counter_ns()

    def count_sent_frame(self, frame_bytes: int) -> None:
        """Count the bytes of a frame before its transmission, because the reply can arrive before the write returns."""
        self.opening_down = self.opening_down or frame_bytes
        self.wire_down += frame_bytes

    def mark_sent(self) -> None:
        """Stamp the end of the transmission, unless the reply has already begun to arrive."""
        if not self.first_received_ns:
            self.last_sent_ns = time.perf_counter_ns()

    def mark_receiving(self, frame_bytes: int, resume: int) -> None:
        """Stamp the arrival of the reply's first frame; mark the call as interrupted if the reply is resumed."""
        self.first_received_ns = time.perf_counter_ns()
        self.last_sent_ns = self.last_sent_ns or self.first_received_ns
        self.opening_up = frame_bytes
        self.interrupted = self.interrupted or resume > 0

    def count_received_frame(self, frame_bytes: int) -> None:
        """Count the bytes of a frame of the reply."""
        self.wire_up += frame_bytes

    def mark_admitted(self) -> None:
        """Set ``held_ns``, the time until there was memory for the rest of the reply."""
        self.held_ns = time.perf_counter_ns() - self.first_received_ns

    def mark_received(self, last_ns: int, size: int, timing: pb.Timing) -> None:
        """Set the stamp of the reply's last frame, the bytes of its payload, and the client's times."""
        self.last_received_ns, self.reply_bytes, self.timing = last_ns, size, timing

    def mark_decoded(self) -> None:
        """Stamp the moment when the values of the reply have been decoded."""
        self.decoded_ns = time.perf_counter_ns()

    def mark_taken(self) -> None:
        """Stamp the moment when the reply has been passed to the collector."""
        self.taken_ns = time.perf_counter_ns()

    def align(self, offset: Offset | None, serialisation: float) -> None:
        """Set the estimated clock offset, and the transmission time of both messages in seconds."""
        self.offset, self.serialisation = offset, serialisation

    def set_socket_bytes(self, socket_bytes: SocketBytes | None) -> None:
        """Set the socket bytes of the client's connection for this call."""
        self.socket_bytes = socket_bytes

    def end(self, outcome: Outcome) -> None:
        """Set the outcome."""
        self.outcome = outcome

    def mark_kept_out(self) -> None:
        """Mark the call as one for whose reply the server had no memory."""
        self.kept_out = True

    def mark_recorded(self) -> None:
        """Mark the row of the call as written."""
        self.recorded = True

    def let_go(self) -> None:
        """Release the arrays of the instruction, because the call itself is kept until the end of the round."""
        self.body = None

    def count_disconnected_time(self, since_ns: int) -> None:
        """Add the client's disconnected time since ``since_ns`` to ``away_ns`` or ``broken_ns``."""
        away_ns = time.perf_counter_ns() - max(since_ns, self.queued_ns)
        if self.first_sent_ns:
            self.broken_ns += away_ns
        else:
            self.away_ns += away_ns

    def unix_ns(self, stamp_ns: int) -> int:
        """Convert a stamp of the performance counter to nanoseconds since 1970."""
        return self.queued_unix_ns + stamp_ns - self.queued_ns

    def head(self, low_water_mark: int) -> pb.Instruction:
        """Return the head of the message, without its payload.

        Parameters
        ----------
        low_water_mark
            Low-water mark of the client. The base of an unconfirmed promise may lie below the mark if checkpoints
            already count the promise. Therefore the smaller of mark and base is sent.
        """
        return pb.Instruction(
            phase=self.phase,
            round=self.round,
            kind=self.kind,
            sequence=self.sequence,
            base=self.base,
            low_water_mark=min(low_water_mark, self.base),
            traceparent=self.traceparent,
        )
