"""Parts of the time of a round or an instruction, measured or projected."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(slots=True)
class TimeParts:
    """Time in seconds, divided into parts.

    Attributes
    ----------
    compute
        Computation on clients.
    encryption
        Encryption and decryption on clients.
    coding
        Encoding, decoding and journalling on both sides.
    serialisation
        Serialisation delay of messages: their bytes pass through the link.
    propagation
        Propagation delay of messages: the rest of their transfer time.
    queueing
        Waiting of messages and replies behind others, in queues of both sides, between threads, or for room in the
        server's memory budget.
    away
        Time without an open client stream.
    waiting
        Waiting for replies that never came, or of one call for the replies to others.
    server
        Work of the server, between phases and on replies.
    """

    compute: float = 0.0
    encryption: float = 0.0
    coding: float = 0.0
    serialisation: float = 0.0
    propagation: float = 0.0
    queueing: float = 0.0
    away: float = 0.0
    waiting: float = 0.0
    server: float = 0.0

    @property
    def network(self) -> float:
        """Transfer time between the two sides: serialisation and propagation."""
        return self.serialisation + self.propagation

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return math.fsum(getattr(self, name) for name in TIME_PARTS)

    @property
    def largest(self) -> str:
        """Name of the largest part."""
        return max(TIME_PARTS, key=lambda name: float(getattr(self, name)))

    def add(self, other: TimeParts) -> None:
        """Add other times, part by part."""
        for name in TIME_PARTS:
            self.spend(name, getattr(other, name))

    def spend(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        setattr(self, part, getattr(self, part) + seconds)


TIME_PARTS = tuple(field.name for field in fields(TimeParts))
"""Names of all parts, in order."""
