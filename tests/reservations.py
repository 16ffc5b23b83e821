"""Room for replies, as a request takes and gives it."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.common.wire.values import Value
from fenchel.fleet.collectors import Collector
from fenchel.fleet.memory_budget import MemoryBudget, Reservation, Size
from fenchel.fleet.request import take_all_due


def roomy(clients: Sequence[str] = (), buffer: int | None = None) -> Reservation:
    """Return open room for whatever comes, or for so many bytes of replies that come before their turn."""
    budget = MemoryBudget(1 << 50)
    return budget.reserve("train", dict.fromkeys(clients, Size(0, None)), buffer).__enter__()


class InRoom:
    """A collector with the room of its phase."""

    def __init__(self, collector: Collector, room: Reservation) -> None:
        self._collector, self._room = collector, room

    async def admit(self, client: str, size: int) -> None:
        """Return when there is room for a reply."""
        await self._room.acquire(client, size)

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Take a reply."""
        self._collector.add(client, values)
        take_all_due(self._collector, self._room)

    def skip(self, client: str) -> None:
        """Expect nothing more of a client."""
        self._collector.skip(client)
        self._room.release(client)
        take_all_due(self._collector, self._room)
