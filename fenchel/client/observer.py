"""Where it goes what the clients of a process do: nowhere, unless somebody measures or traces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fenchel.proto import fenchel_pb2 as pb


@dataclass(frozen=True)
class ClientObserver:
    """Told on the event loop what happens; each call begins with the client's id.

    Attributes
    ----------
    opening
        Called before each stream to the server; returns the trace context that is named in its metadata, or nothing.
    closed
        Called when a stream has ended.
    answered
        Called with each instruction, its reply and the bytes of the reply's body, once that is on its way.
    round_trip
        Called with seconds, several times a minute; ``None``: round trips are not measured.
    """

    opening: Callable[[str], str] = lambda client: ""
    closed: Callable[[str], None] = lambda client: None
    answered: Callable[[str, pb.Instruction, pb.Reply, int], None] = lambda client, told, reply, size: None
    round_trip: Callable[[str, float], None] | None = None

    def beside(self, other: ClientObserver) -> ClientObserver:
        """Return an observer that tells this one and then another; only one of them can trace."""

        def opening(client: str) -> str:
            mine, theirs = self.opening(client), other.opening(client)
            return mine or theirs

        def closed(client: str) -> None:
            self.closed(client)
            other.closed(client)

        def answered(client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
            self.answered(client, instruction, reply, size)
            other.answered(client, instruction, reply, size)

        return ClientObserver(opening, closed, answered, self.round_trip or other.round_trip)
