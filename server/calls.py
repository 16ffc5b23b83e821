"""One instruction on its way to one client and back, stamped at each boundary."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from common.frames import Body
from proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from server.exchange import Exchange

Outcome = Literal["counted", "late", "failed", "unanswered", "promised", "told"]
"""What became of a call. A told one is ``promised`` until the client confirms it."""


@dataclass(slots=True)
class Call:
    """An instruction to one client, and what became of it.

    Times ending in ``_ns`` are of this process's performance counter; 0 means not yet.
    """

    client: str
    sequence: int
    base: int
    phase: str
    round: int
    kind: pb.Kind.ValueType
    body: Body | None
    exchange: Exchange | None = None
    queued_unix_ns: int = field(default_factory=time.time_ns)
    queued_ns: int = field(default_factory=time.perf_counter_ns)
    first_sent_ns: int = 0
    last_sent_ns: int = 0
    first_received_ns: int = 0
    last_received_ns: int = 0
    decoded_ns: int = 0
    body_bytes: int = 0
    reply_bytes: int = 0
    wire_down: int = 0
    wire_up: int = 0
    timing: pb.Timing | None = None
    outcome: Outcome = "unanswered"

    def __post_init__(self) -> None:
        if self.body is not None:
            self.body_bytes = self.body.size
        if self.kind == pb.TELL:
            self.outcome = "promised"

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
        )
