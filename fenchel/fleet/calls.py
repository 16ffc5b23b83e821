"""One instruction on its way to one client and back, which takes its own time at each boundary."""

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

Outcome = Literal["counted", "late", "failed", "unanswered", "promised", "told"]
"""What became of a call. A told one is ``promised`` until the client confirms it."""


class ReplySink(Protocol):
    """A request as the calls that belong to it see it; ``fenchel/fleet/request.py`` has the implementation.

    Attributes
    ----------
    forms
        Declared form of each value of the replies, by name.
    room
        For its replies.
    values
        Number of values of each reply; ``None``: any number.
    started_ns
        started_ns, posted_ns, ended_ns: by the performance counter: when it was made, when all clients had been asked,
        when it was over; 0: not yet.
    """

    forms: Mapping[str, Form]
    room: Reservation
    values: int | None
    started_ns: int
    posted_ns: int
    ended_ns: int

    def is_open_for(self, call: Call) -> bool:
        """Return whether a reply to this call would still count."""
        ...

    def check(self, client: str, values: Mapping[str, Value], finite: bool, /) -> None:
        """Raise ``PayloadError`` for a reply that is not what was asked for."""
        ...

    async def arriving(self, call: Call, size: int) -> None:
        """Note that a reply has begun to arrive; return when there is room for its body."""
        ...

    def interrupted(self, client: str) -> None:
        """Note that a reply stopped arriving."""
        ...

    def receive(self, call: Call, values: dict[str, Value]) -> None:
        """Count a reply that has been checked."""
        ...

    def fail(self, call: Call, reason: str, *, diverged: bool = False) -> None:
        """Note that a client could not answer."""
        ...


@dataclass(slots=True, kw_only=True)
class Call:
    """An instruction to one client, and what became of it.

    Times ending in ``_ns`` are of this process's performance counter; 0 means not yet. Durations are
    ``held_ns`` (the reply was left on the wire, because there was no room for it), ``away_ns`` and
    ``broken_ns`` (the client had no stream open: before the first byte was sent to it, and after that).

    Attributes
    ----------
    taken_ns
        When the reply had been checked and had entered the result.
    interrupted
        Whether a stream broke before the answer was here. ``first_sent_ns`` is of the first time that it was sent.
    opening_down, opening_up
        Bytes of the first frame of the instruction and of its reply.
    offset
        Between the two clocks, as far as it was known when the reply came.
    serialisation
        Seconds in which the bytes of both messages passed.
    crossed
        What crossed the client's connection for it; ``None``: nobody knows.
    kept_out
        Whether the reply could not come for want of room on the server, which is not the client's doing.
    recorded
        Whether its row has been written: a promise may be kept later than that.
    traceparent
        W3C trace context of the question; empty: nobody traces.
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
    crossed: SocketBytes | None = None
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
        """End of the exchange that it belongs to; 0: not yet, or none."""
        return 0 if self.request is None else self.request.ended_ns

    @property
    def most_values(self) -> int | None:
        """Number of values that the reply may have: 0 to a ``tell``; ``None``: any number."""
        if self.kind == pb.TELL:
            return 0
        return None if self.request is None else self.request.values

    def mark_sending(self, resume: int) -> None:
        """Note that it is being sent now, from some byte of its payload on."""
        self.interrupted = self.interrupted or self.first_sent_ns > 0 or resume > 0
        self.first_sent_ns = self.first_sent_ns or time.perf_counter_ns()

    def count_sent_frame(self, frame_bytes: int) -> None:
        """Count a frame, before it is written: the answer can be here before the write returns."""
        self.opening_down = self.opening_down or frame_bytes
        self.wire_down += frame_bytes

    def mark_sent(self) -> None:
        """Note that all of it has been written, unless the reply says so."""
        if not self.first_received_ns:
            self.last_sent_ns = time.perf_counter_ns()

    def mark_receiving(self, frame_bytes: int, resume: int) -> None:
        """Note that the reply has begun to arrive now, with a first frame, from some byte of its payload on."""
        self.first_received_ns = time.perf_counter_ns()
        self.last_sent_ns = self.last_sent_ns or self.first_received_ns
        self.opening_up = frame_bytes
        self.interrupted = self.interrupted or resume > 0

    def count_received_frame(self, frame_bytes: int) -> None:
        """Count a frame of the reply."""
        self.wire_up += frame_bytes

    def mark_admitted(self) -> None:
        """Note that there is room for the rest of the reply now."""
        self.held_ns = time.perf_counter_ns() - self.first_received_ns

    def mark_received(self, last_ns: int, size: int, timing: pb.Timing) -> None:
        """Note the whole reply: when its last frame came, the bytes of its payload, and the client's account."""
        self.last_received_ns, self.reply_bytes, self.timing = last_ns, size, timing

    def mark_decoded(self) -> None:
        """Note that the values of the reply have been read now."""
        self.decoded_ns = time.perf_counter_ns()

    def mark_taken(self) -> None:
        """Note that the reply has entered the result now."""
        self.taken_ns = time.perf_counter_ns()

    def align(self, offset: Offset | None, serialisation: float) -> None:
        """Note how far the client's clock is off, and the seconds in which the bytes of both messages passed."""
        self.offset, self.serialisation = offset, serialisation

    def set_socket_bytes(self, crossed: SocketBytes | None) -> None:
        """Note what crossed the client's connection for it."""
        self.crossed = crossed

    def end(self, outcome: Outcome) -> None:
        """Note what became of it."""
        self.outcome = outcome

    def mark_kept_out(self) -> None:
        """Note that there was no room for its reply."""
        self.kept_out = True

    def mark_recorded(self) -> None:
        """Note that its row has been written."""
        self.recorded = True

    def let_go(self) -> None:
        """Let go of the arrays that it sent: the record of the call is kept for the round, and they need not be."""
        self.body = None

    def count_disconnected_time(self, since_ns: int) -> None:
        """Note that the client has come back now, or is given up, and had been away since some moment."""
        away_ns = time.perf_counter_ns() - max(since_ns, self.queued_ns)
        if self.first_sent_ns:
            self.broken_ns += away_ns
        else:
            self.away_ns += away_ns

    def unix_ns(self, stamp_ns: int) -> int:
        """Return the time of day of a moment of the performance counter."""
        return self.queued_unix_ns + stamp_ns - self.queued_ns

    def head(self, reach: int) -> pb.Instruction:
        """Return the head of the message, without its payload.

        A promise counts in a checkpoint before it is kept, so its own base may lie before ``reach``.
        """
        return pb.Instruction(
            phase=self.phase,
            round=self.round,
            kind=self.kind,
            sequence=self.sequence,
            base=self.base,
            reach=min(reach, self.base),
            traceparent=self.traceparent,
        )
