"""Observers of a client process."""

from __future__ import annotations

from fenchel.proto import fenchel_pb2 as pb


class ClientObserver:
    """Base class of receivers of the events of a client process, with methods that do nothing.

    They are called on the event loop.

    Attributes
    ----------
    times_round_trips
        True if round trips are to be measured, several times a minute.
    """

    times_round_trips: bool = False

    def opening(self, client: str) -> str:
        """Return the trace context for the metadata of a stream that a client is about to open, or an empty string."""
        return ""

    def closed(self, client: str) -> None:
        """Handle the end of a client's stream."""

    def answered(self, client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
        """Handle an instruction after its reply was sent, whose body has ``size`` bytes."""

    def round_trip(self, client: str, seconds: float) -> None:
        """Handle a measured round trip to the server."""


class ClientObservers(ClientObserver):
    """Several observers in place of one."""

    def __init__(self, *observers: ClientObserver) -> None:
        self._observers = observers
        self.times_round_trips = any(each.times_round_trips for each in observers)

    def opening(self, client: str) -> str:
        """Return the first trace context that is not empty."""
        return next(filter(None, [each.opening(client) for each in self._observers]), "")

    def closed(self, client: str) -> None:
        """Forward :meth:`ClientObserver.closed`."""
        for each in self._observers:
            each.closed(client)

    def answered(self, client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
        """Forward :meth:`ClientObserver.answered`."""
        for each in self._observers:
            each.answered(client, instruction, reply, size)

    def round_trip(self, client: str, seconds: float) -> None:
        """Forward :meth:`ClientObserver.round_trip`."""
        for each in self._observers:
            each.round_trip(client, seconds)
