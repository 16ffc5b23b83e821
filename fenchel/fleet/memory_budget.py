"""How much of replies the server holds at once, over all clients and phases.

A reply is in flight from the moment that memory is taken for it until it has been folded into a sum, or its
phase is over and the algorithm has it. What does not fit waits on the wire, where flow control holds it.

Nobody can wait for ever. Rooms are in the order in which their phases began, and a younger room is given only
what the older ones cannot come to need. So the oldest always goes on, and after it the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fenchel.common.errors import PayloadError, SettingsError
from fenchel.common.memory import memory_bytes
from fenchel.common.wire.schema import Expectation, body_bounds

_SMALL_BYTES = 1 << 20  # replies up to here are never held back where they are taken in order


@dataclass(frozen=True)
class Size:
    """How many bytes the body of a reply has: at least, and at most (``None``: as many as a message)."""

    least: int
    most: int | None

    @classmethod
    def of(cls, expectation: Expectation) -> Size:
        """Return that of a reply that is as expected."""
        return cls(*body_bounds(expectation))


class Reservation:
    """What one phase may hold of replies; open for the duration of a ``with`` block.

    Where replies are taken in order, one that comes before its turn needs room in a buffer of bounded size; when that
    is full, the others are left on the wire. So the server's memory does not grow with the number of clients.

    Parameters
    ----------
    sizes
        Of the replies, by client, in the order in which they are taken.
    wanted
        Bytes that it may come to hold.
    buffer
        Of these, what replies may take that come before their turn; ``None``: all are held until the last has come.
    allowed
        Bytes of a client's reply, where the limit leaves less than was asked for.
    """

    def __init__(
        self,
        memory_budget: MemoryBudget,
        sizes: Mapping[str, Size],
        wanted: int,
        *,
        buffer: int | None = None,
        allowed: Mapping[str, int] | None = None,
    ) -> None:
        self._memory_budget = memory_budget
        self._sizes = sizes
        self.wanted = wanted
        self.buffer = buffer
        self._allowed = allowed or {}
        self._turns = OrderedDict.fromkeys(sizes if buffer is not None else ())
        """Clients whose replies are to be taken in order, and are not yet; the first is next."""
        self._claims: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self._open = False
        self.held = 0

    def __enter__(self) -> Self:
        self._open = True
        self._memory_budget.rooms.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._memory_budget.rooms.remove(self)
        for client in [*self._waiting, *self._claims]:
            self._give_back(client)
        self._memory_budget.grant()  # also where nothing was held: what it might have needed is free

    def check(self, client: str, size: int) -> None:
        """Refuse a reply of ``size`` bytes for which there will be no room, however long it waits.

        Raises
        ------
        PayloadError
            It is larger than what was asked for, or than what the memory budget leaves for it.
        """
        asked = self._sizes.get(client)
        if asked is not None and asked.most is not None and size > asked.most:
            raise PayloadError(f"its reply has {size:,} bytes, and what was asked for has {asked.most:,} at most")
        most = self._allowed.get(client, size)
        if size > most:
            raise PayloadError(
                f"its reply has {size:,} bytes, and network.in_flight_bytes, {self._memory_budget.limit:,}, leaves "
                f"{most:,} for it in this phase"
            )

    @property
    def holds_back(self) -> bool:
        """True if replies wait until others have been taken."""
        waiting = self._waiting.items()
        return any(not turn.done() and not self._has_turn(client, size) for client, (size, turn) in waiting)

    async def acquire(self, client: str, size: int) -> None:
        """Return when there is room for a client's reply.

        That is at once if it has that room, if the phase is over, or if a small reply is taken in order. A client that
        comes back with a reply of another size gives up its room, and waits for other room.
        """
        if not self._open or self._claims.get(client) == size or (self.buffer is not None and size <= _SMALL_BYTES):
            return
        if client in self._claims:
            self._give_back(client)
        if not self._waiting and self._has_turn(client, size) and size <= self._memory_budget.free_for(self):
            self._give(client, size)
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting[client] = size, turn
        self._memory_budget.grant()
        try:
            await turn
        finally:
            if self._waiting.get(client) is waiting:  # and not that of a later stream of this client
                del self._waiting[client]
                self._memory_budget.grant()  # to others that were kept by it, if it has gone

    def _has_turn(self, client: str, size: int) -> bool:
        """Return whether a reply is next, or may come before its turn."""
        if self.buffer is None or self.held + size <= self.buffer:
            return True
        return next(iter(self._turns), None) == client

    def grant(self) -> None:
        """Let those go on who wait and have their turn, in the order in which they came, as long as they fit."""
        for client, (size, turn) in list(self._waiting.items()):
            if turn.done() or not self._has_turn(client, size):
                continue
            if size > self._memory_budget.free_for(self):
                return
            self._give(client, size)
            turn.set_result(None)

    def _give(self, client: str, size: int) -> None:
        self._claims[client] = size
        self.held += size

    def release(self, client: str) -> None:
        """Note that a client's reply has been taken, or will not come: the turn is the next one's."""
        self._turns.pop(client, None)
        self._give_back(client)

    def _give_back(self, client: str) -> None:
        _, turn = self._waiting.pop(client, (0, None))
        if turn is not None and not turn.done():
            turn.set_result(None)
        self.held -= self._claims.pop(client, 0)
        self._memory_budget.grant()


class MemoryBudget:
    """All rooms of a run.

    Parameters
    ----------
    limit
        Bytes of all rooms together; ``None``: half of the memory.
    largest_message
        Bytes that a reply can have where nobody said less.
    """

    def __init__(self, limit: int | None = None, largest_message: int = 8 << 30) -> None:
        self.limit = memory_bytes() // 2 if limit is None else limit
        self._largest_message = largest_message
        self.rooms: list[Reservation] = []  # of the phases that go on, the oldest first

    @property
    def held(self) -> int:
        """Bytes of all replies that are in flight."""
        return sum(room.held for room in self.rooms)

    def free_for(self, room: Reservation) -> int:
        """Return the bytes that a room may be given now."""
        place = self.rooms.index(room)
        needed = sum(older.wanted for older in self.rooms[:place])
        return self.limit - needed - sum(other.held for other in self.rooms[place:])

    def grant(self) -> None:
        """Let those go on who wait and fit, in the oldest room first."""
        for room in self.rooms:
            room.grant()

    def room(self, phase: str, sizes: Mapping[str, Size], buffer: int | None = None) -> Reservation:
        """Return the room of a phase.

        Parameters
        ----------
        sizes
            Of the replies, by client.
        buffer
            Bytes for replies that come before their turn; ``None``: all are held until the last has come.
        """
        if buffer is None:
            return self._together(phase, sizes)
        return self._one_after_the_other(phase, sizes, buffer)

    def _together(self, phase: str, sizes: Mapping[str, Size]) -> Reservation:
        least = sum(size.least for size in sizes.values())
        if least > self.limit:
            raise SettingsError(
                f"{phase}: the replies of {len(sizes)} clients have {least:,} bytes, all of which this phase holds at "
                f"once, and network.in_flight_bytes is {self.limit:,}. Ask fewer clients in a round "
                "(participation.sampler), or, on a machine that has the memory, set network.in_flight_bytes higher; "
                "for an algorithm of your own, reduce and visit hold a few replies at a time"
            )
        open_parts = {
            client: max((self._largest_message if size.most is None else size.most) - size.least, 0)
            for client, size in sizes.items()
        }
        spare, wanted = self.limit - least, sum(open_parts.values())
        if wanted <= spare:
            return Reservation(self, sizes, least + wanted)
        # What is open is cut for all alike, so that whose reply counts does not depend on who comes first.
        return Reservation(
            self,
            sizes,
            self.limit,
            allowed={client: size.least + spare * open_parts[client] // wanted for client, size in sizes.items()},
        )

    def _one_after_the_other(self, phase: str, sizes: Mapping[str, Size], buffer: int) -> Reservation:
        buffer = min(buffer, self.limit // 2)
        largest = 0
        for client, size in sizes.items():
            if size.least > self.limit:
                raise SettingsError(
                    f"{phase}: the reply of client {client} has {size.least:,} bytes, and network.in_flight_bytes is "
                    f"{self.limit:,}; set it higher, on a machine that has the memory"
                )
            most = self._largest_message if size.most is None else size.most
            largest = max(largest, most if most <= self.limit else self.limit - buffer, size.least)
        return Reservation(
            self,
            sizes,
            min(largest + buffer, self.limit),
            buffer=min(buffer, self.limit - largest),
            allowed=dict.fromkeys(sizes, largest),
        )
