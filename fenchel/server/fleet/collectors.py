"""Collectors of the replies to one request: all of them at once, or one after the other in the order of client ids."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Indices
from fenchel.common.wire.values import Array, SparseVector, Value
from fenchel.server.fleet.memory_budget import Reservation
from fenchel.server.fleet.weighted_sum import WeightedSum

_SMALL_BYTES = 1 << 20  # replies up to here are never held back


class Collector(Protocol):
    """Takes the replies of an exchange as they arrive."""

    buffer_bytes: int | None  # for replies that come before their turn; ``None``: all are held until the last has come

    def enter(self, room: Reservation) -> None:
        """Take up a room, before the first reply comes."""
        ...

    def excess(self, client: str, size: int) -> str:
        """Say why there is no room for a reply, however long it waits; empty if there is."""
        ...

    async def admit(self, client: str, size: int) -> None:
        """Return when there is room for a reply of ``size`` bytes."""
        ...

    def holds_back(self) -> bool:
        """Whether replies wait for room until others have been taken."""
        ...

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Take a reply that has been checked."""
        ...

    def skip(self, client: str) -> None:
        """Expect nothing more of a client: it failed, or its time is up."""
        ...


def number_of(value: Value) -> float:
    """Return a value that weighs others as a number."""
    if isinstance(value, bool | int | float):
        return float(value)
    raise TypeError(f"a weight must be a number, not {type(value).__name__}")


def array_of(name: str, value: Value) -> Array:
    """Return a value of a reply as an array whose sum and mean are exact for counts, too."""
    if isinstance(value, np.ndarray):
        # Sums of counts must not wrap, nor means of them be cut off.
        return value if value.dtype.kind == "f" else value.astype(np.float64)
    if isinstance(value, bool | int | float):
        return np.asarray(float(value))
    raise TypeError(f"{name!r} is a {type(value).__name__}, which has no mean")


class Gathered:
    """Collects whole replies (:meth:`fenchel.server.fleet.cohort.Cohort.ask`)."""

    buffer_bytes: int | None = None

    def __init__(self) -> None:
        self.replies: dict[str, dict[str, Value]] = {}
        self._room: Reservation | None = None

    def enter(self, room: Reservation) -> None:
        """Take up a room, before the first reply comes."""
        self._room = room

    def excess(self, client: str, size: int) -> str:
        """Say why there is no room for a reply, however long it waits; empty if there is."""
        return "" if self._room is None else self._room.excess(client, size)

    async def admit(self, client: str, size: int) -> None:
        """Return when there is room: all replies are wanted at once, and other phases may take some."""
        if self._room is not None:
            await self._room.claim(client, size)

    def holds_back(self) -> bool:
        """Nobody waits for a turn: there is room for all replies of the phase, or there is an error."""
        return False

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Keep a reply."""
        self.replies[client] = values

    def skip(self, client: str) -> None:
        """Nothing waits for this client."""
        if self._room is not None:
            self._room.release(client)


class InOrder(ABC):
    """Takes replies in the order of client ids as they arrive.

    Replies that come before their turn wait in a buffer of bounded size; when it is full, the others
    are left on the wire, where flow control holds them. So the server's memory does not grow with the
    number of clients.

    order: client ids in order.
    """

    def __init__(self, order: Sequence[str], buffer_bytes: int) -> None:
        self._order = list(order)
        self.buffer_bytes: int | None = buffer_bytes
        self._buffer = buffer_bytes
        self._room: Reservation | None = None
        self._next = 0
        self._ready: dict[str, dict[str, Value] | None] = {}
        self._held: dict[str, int] = {}
        self._queue: dict[str, tuple[int, asyncio.Future[None]]] = {}

    def enter(self, room: Reservation) -> None:
        """Take up a room, before the first reply comes; it may leave less for the buffer."""
        self._room, self._buffer = room, room.buffer

    def excess(self, client: str, size: int) -> str:
        """Say why there is no room for a reply, however long it waits; empty if there is."""
        return "" if self._room is None else self._room.excess(client, size)

    async def admit(self, client: str, size: int) -> None:
        """Return when the reply may be received: it is next, or there is room in the buffer."""
        if size <= _SMALL_BYTES:
            return
        if self._held.get(client) != size:
            if self._held.pop(client, None) is not None and self._room is not None:
                # It comes back with a reply of another size, which waits for its turn like any.
                self._room.release(client)
            await self._turn(client, size)
        if self._room is not None and client in self._held:
            await self._room.claim(client, size)

    async def _turn(self, client: str, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        waiting = self._queue[client] = size, turn
        self._grant()
        try:
            await turn
        finally:
            if self._queue.get(client) is waiting:  # and not that of a later stream of this client
                del self._queue[client]

    def holds_back(self) -> bool:
        """Whether replies wait until it is their turn, or until there is room in the buffer."""
        return any(not turn.done() for _, turn in self._queue.values())

    def _grant(self) -> None:
        for client, (size, turn) in list(self._queue.items()):
            is_next = self._next < len(self._order) and self._order[self._next] == client
            if not turn.done() and (is_next or sum(self._held.values()) + size <= self._buffer):
                self._held[client] = size
                turn.set_result(None)

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Take a reply, or keep it until its turn."""
        self._ready[client] = values
        self._take_all()

    def skip(self, client: str) -> None:
        """Take the others without this one."""
        self._ready[client] = None
        self._forget(client)
        self._take_all()

    def _forget(self, client: str) -> None:
        self._held.pop(client, None)
        if client in self._queue and not (turn := self._queue[client][1]).done():
            turn.set_result(None)  # it is not awaited any more: it may come, and is dropped
        if self._room is not None:
            self._room.release(client)

    def _take_all(self) -> None:
        while self._next < len(self._order) and self._order[self._next] in self._ready:
            client = self._order[self._next]
            self._next += 1
            values = self._ready.pop(client)
            if values is not None:
                self.take(client, values)
            self._forget(client)
        self._grant()

    @abstractmethod
    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Take a client's reply: it is its turn."""


class Visited(InOrder):
    """Hands each reply on, and keeps none (:meth:`fenchel.server.fleet.cohort.Cohort.visit`)."""

    def __init__(
        self, order: Sequence[str], buffer_bytes: int, look: Callable[[str, Mapping[str, Value]], None]
    ) -> None:
        super().__init__(order, buffer_bytes)
        self._look = look

    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Let the caller look at a reply."""
        self._look(client, values)


class Folded(InOrder):
    """Sums of replies that are added up in the order of client ids as they arrive."""

    def __init__(
        self, order: Sequence[str], weight: str | None, buffer_bytes: int, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(order, buffer_bytes)
        self._weight = weight
        self._dtype = dtype
        self._totals: dict[str, WeightedSum] = {}
        self._sparse: dict[str, Array] = {}
        self._coverage: dict[str, Array] = {}
        self._weights = 0.0

    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Add a reply to the sums."""
        factor = 1.0 if self._weight is None else number_of(values[self._weight])
        self._weights += factor
        for name, value in values.items():
            if isinstance(value, SparseVector):
                self._fold_entries(name, value.indices, value.values, value.size, factor)
            elif name != self._weight:
                array = array_of(name, value)
                if self._dtype is not None:
                    array = array.astype(self._dtype, copy=False)
                if name in self._sparse:
                    self._fold_entries(name, slice(None), array, len(array), factor)
                else:
                    self._totals.setdefault(name, WeightedSum()).add(array, factor)

    def _fold_entries(self, name: str, which: Indices | slice, entries: Array, size: int, factor: float) -> None:
        if name not in self._sparse:
            dense = self._totals.pop(name, None)  # others may have given every entry
            self._sparse[name] = np.zeros(size, self._dtype or entries.dtype) if dense is None else dense.sum()
            self._coverage[name] = np.full(size, 0.0 if dense is None else dense.weight)
        total = self._sparse[name]
        # Each index comes once, so the sums below miss none.
        total[which] += total.dtype.type(factor) * entries
        self._coverage[name][which] += factor

    def coverage(self, name: str) -> Array:
        """Return, for a vector that came sparse, the weight of the replies that held each entry, shape (size,)."""
        return self._coverage[name]

    @property
    def weight(self) -> float:
        """Sum of the weights of the replies; their number where no weight was named."""
        return self._weights

    def sum(self, name: str) -> Array:
        """Return the (weighted) sum of an array over the replies; entries that none of them held are zero."""
        return self._sparse[name] if name in self._sparse else self._totals[name].sum()

    def mean(self, name: str) -> Array:
        """Return the (weighted) mean of an array over the replies, a new array."""
        if not self._weights:
            raise ZeroDivisionError(f"the weights of {name!r} add up to zero")
        if name in self._sparse:
            total = self._sparse[name]
            mean: Array = np.divide(total, total.dtype.type(self._weights))
            return mean
        return self._totals[name].mean()
