"""Parts of time: of the seconds of a round or of an instruction, measured or projected."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(slots=True)
class TimeParts:
    """Seconds, by what they were spent on.

    Attributes
    ----------
    compute, encryption
        Of clients; encryption and decryption.
    coding
        Encoding, decoding and journalling, on both sides.
    serialisation
        The bytes of messages pass.
    propagation
        The rest of their way.
    queueing
        Ready, but not taken up: behind others, in the queues of both sides, between threads, or for want of room on the
        server.
    away
        The client had no stream open.
    waiting
        For answers that never came, or of one call for those of others.
    server
        The server's own work: between exchanges, and with replies.
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
        """Seconds between the two sides."""
        return self.serialisation + self.propagation

    @property
    def total(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, name) for name in TIME_PARTS)

    @property
    def largest(self) -> str:
        """The part that took the most."""
        return max(TIME_PARTS, key=lambda name: float(getattr(self, name)))

    def add(self, other: TimeParts) -> None:
        """Add the seconds of another, part by part."""
        for name in TIME_PARTS:
            self.spend(name, getattr(other, name))

    def spend(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        setattr(self, part, getattr(self, part) + seconds)


TIME_PARTS = tuple(field.name for field in fields(TimeParts))
"""Of all parts, in order."""
