"""Observer hooks of a client process, which do nothing by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fenchel.proto import fenchel_pb2 as pb


@dataclass(frozen=True)
class ClientObserver:
    """Callbacks of a client process, called on the event loop with the client id as first argument.

    Attributes
    ----------
    opening
        Called before each stream to the server. Returns the trace context for the stream's metadata, or "".
    closed
        Called when a stream has ended.
    answered
        Called with each instruction, its reply and the size of the reply's body in bytes, once the reply is sent.
    round_trip
        Called with the round-trip time in seconds, several times a minute; ``None`` disables the measurement.
    """

    opening: Callable[[str], str] = lambda client: ""
    closed: Callable[[str], None] = lambda client: None
    answered: Callable[[str, pb.Instruction, pb.Reply, int], None] = lambda client, instruction, reply, size: None
    round_trip: Callable[[str, float], None] | None = None

    def beside(self, other: ClientObserver) -> ClientObserver:
        """Return an observer that calls this observer and then the other.

        Only one of the two can provide the trace context or measure round trips; this observer takes precedence.
        """

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
