"""Memory budget: a limit on the bytes of replies that the server holds at once, over all clients and phases.

A reply is in flight from the allocation of its memory until the reply has been added to a sum, or its phase has ended
and the algorithm holds the reply. Replies that do not fit wait on the wire, held by flow control.

Reservations cannot deadlock. They are ordered by the start of their phases, and a later reservation gets only memory
that the earlier reservations can never need. So the earliest always proceeds, and after it the next.
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

_SMALL_BYTES = 1 << 20  # largest size in bytes of a reply that phases with a fixed order of replies never hold back


@dataclass(frozen=True)
class Size:
    """Bounds on the size of a reply's body in bytes. If ``most`` is ``None``, the limit on all messages applies."""

    least: int
    most: int | None

    @classmethod
    def of(cls, expectation: Expectation) -> Size:
        """Return the bounds of a reply that matches a schema."""
        return cls(*body_bounds(expectation))


class Reservation:
    """Memory reservation of one phase for its replies, open for the duration of a ``with`` block.

    If replies are taken in order, a reply that arrives before its turn needs space in a buffer of bounded size. When
    the buffer is full, further replies stay on the wire. So the server's memory does not grow with the number of
    clients.

    Parameters
    ----------
    memory_budget
        Budget of the run.
    sizes
        Bounds on the bytes of each reply, by client id, in the order in which replies are taken.
    wanted
        Largest number of bytes that the phase holds at once.
    buffer
        Number of bytes of ``wanted`` for replies that arrive before their turn; ``None``: all replies are held until
        the last has arrived.
    allowed
        Largest size of each client's reply in bytes, by client id, if the budget leaves less than the schema permits.

    Attributes
    ----------
    held
        Number of bytes that replies have claimed.
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
        """Clients whose replies are still to be taken, in order."""
        self._claims: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self._open = False
        self.held = 0

    def __enter__(self) -> Self:
        self._open = True
        self._memory_budget.reservations.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._memory_budget.reservations.remove(self)
        for client in [*self._waiting, *self._claims]:
            self._give_back(client)
        self._memory_budget.grant()  # grant in any case: memory reserved for this phase is now free

    def check(self, client: str, size: int) -> None:
        """Check that a reply of ``size`` bytes can fit.

        Raises
        ------
        PayloadError
            If the reply is larger than its schema or the memory budget permits.
        """
        asked = self._sizes.get(client)
        if asked is not None and asked.most is not None and size > asked.most:
            raise PayloadError(f"the reply has {size:,} bytes, above the maximum of {asked.most:,} of the request")
        most = self._allowed.get(client, size)
        if size > most:
            raise PayloadError(
                f"the reply has {size:,} bytes, above the {most:,} that network.in_flight_bytes "
                f"({self._memory_budget.limit:,}) leaves for it in this phase"
            )

    @property
    def holds_back(self) -> bool:
        """True if replies wait until others have been taken."""
        waiting = self._waiting.items()
        return any(not turn.done() and not self._has_turn(client, size) for client, (size, turn) in waiting)

    async def acquire(self, client: str, size: int) -> None:
        """Wait until there is memory for a client's reply, and claim that memory.

        The call returns at once if the client already has a claim of this size, if the phase is over, or if a small
        reply is taken in order. A client that reconnects with a reply of another size loses its claim and waits again.
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
            if self._waiting.get(client) is waiting:  # a later stream of this client may have replaced the entry
                del self._waiting[client]
                self._memory_budget.grant()  # grant memory to replies that queued behind this reply

    def _has_turn(self, client: str, size: int) -> bool:
        """Return True if a client's reply is next in order, or if the buffer has space for the reply."""
        if self.buffer is None or self.held + size <= self.buffer:
            return True
        return next(iter(self._turns), None) == client

    def grant(self) -> None:
        """Claim memory for the waiting replies whose turn it is, in the order of arrival, as long as they fit."""
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
        """Free the memory of a reply that was taken or will not arrive, and pass the turn to the next client."""
        self._turns.pop(client, None)
        self._give_back(client)

    def _give_back(self, client: str) -> None:
        _, turn = self._waiting.pop(client, (0, None))
        if turn is not None and not turn.done():
            turn.set_result(None)
        self.held -= self._claims.pop(client, 0)
        self._memory_budget.grant()


class MemoryBudget:
    """Memory budget of a run, shared by the reservations of its phases.

    Parameters
    ----------
    limit
        Largest number of bytes of all replies in flight; ``None``: half of the machine's memory.
    largest_message
        Limit on the size of a message in bytes, which applies to replies whose schema sets no bound.

    Attributes
    ----------
    rooms
        Open reservations, the earliest first.
    """

    def __init__(self, limit: int | None = None, largest_message: int = 8 << 30) -> None:
        self.limit = memory_bytes() // 2 if limit is None else limit
        self._largest_message = largest_message
        self.reservations: list[Reservation] = []

    @property
    def held(self) -> int:
        """Bytes of all replies that are in flight."""
        return sum(reservation.held for reservation in self.reservations)

    def free_for(self, reservation: Reservation) -> int:
        """Return the bytes that a reservation may claim now."""
        place = self.reservations.index(reservation)
        needed = sum(older.wanted for older in self.reservations[:place])
        return self.limit - needed - sum(other.held for other in self.reservations[place:])

    def grant(self) -> None:
        """Claim memory for waiting replies that fit, beginning with the replies of the earliest reservation."""
        for reservation in self.reservations:
            reservation.grant()

    def reserve(self, phase: str, sizes: Mapping[str, Size], buffer: int | None = None) -> Reservation:
        """Create the memory reservation of a phase.

        Parameters
        ----------
        phase
            Name of the phase, for messages.
        sizes
            Bounds on the bytes of each reply, by client id, in the order in which replies are taken.
        buffer
            Number of bytes for replies that arrive before their turn; ``None``: all replies are held until the last has
            arrived.

        Raises
        ------
        SettingsError
            If even the smallest replies that match the schema exceed the budget.
        """
        if buffer is None:
            return self._together(phase, sizes)
        return self._one_after_the_other(phase, sizes, buffer)

    def _together(self, phase: str, sizes: Mapping[str, Size]) -> Reservation:
        least = sum(size.least for size in sizes.values())
        if least > self.limit:
            raise SettingsError(
                f"{phase}: the replies of {len(sizes)} clients have {least:,} bytes, all held at once, but "
                f"network.in_flight_bytes is {self.limit:,}. Draw fewer clients (participation.sampler), or raise "
                "network.in_flight_bytes on a machine with the memory. An algorithm of your own can use reduce "
                "and visit, which hold a few replies at a time"
            )
        open_parts = {
            client: max((self._largest_message if size.most is None else size.most) - size.least, 0)
            for client, size in sizes.items()
        }
        spare, wanted = self.limit - least, sum(open_parts.values())
        if wanted <= spare:
            return Reservation(self, sizes, least + wanted)
        # Reduce every client's unbounded part by the same factor, so that the order of arrival does not matter.
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
                    f"{phase}: the reply of client {client} has {size.least:,} bytes, above "
                    f"network.in_flight_bytes ({self.limit:,}); raise it on a machine with the memory"
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
