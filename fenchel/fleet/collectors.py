"""Collectors of the replies to one request: all of them at once, or one after the other in the order of client ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Array, Indices
from fenchel.common.wire.codecs import entries_of
from fenchel.common.wire.values import Value
from fenchel.fleet.weighted_sum import WeightedSum


class Collector(Protocol):
    """Takes the replies of a request: a reply is added, and taken when it is due."""

    buffer_bytes: int | None  # for replies that come before their turn; ``None``: all are held until the last has come

    @property
    def due(self) -> str | None:
        """Client whose reply is here and is next; ``None``: there is none, or all are kept until the last has come."""
        ...

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Add a reply that has been checked."""
        ...

    def skip(self, client: str) -> None:
        """Expect nothing more of a client: it failed, or its time is up."""
        ...

    def take_due(self) -> None:
        """Take the reply that is due, whose memory is free after that."""
        ...


def number_of(value: Value) -> float:
    """Return a value that weighs others as a number."""
    if isinstance(value, bool | int | float):
        return float(value)
    raise TypeError(f"a weight must be a number, not {type(value).__name__}")


def array_of(name: str, value: Value) -> Array:
    """Return a value of a reply as an array whose sum and mean are exact for counts, too."""
    if isinstance(value, bool | int | float):
        return np.asarray(float(value))
    if (entries := entries_of(value)) is not None:
        array = entries.dense()
        # Sums of counts must not wrap, nor means of them be cut off.
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    raise TypeError(f"{name!r} is a {type(value).__name__}, which has no mean")


class GatherCollector:
    """Collects whole replies (:meth:`fenchel.fleet.cohort.Cohort.ask`)."""

    buffer_bytes: int | None = None
    due: str | None = None

    def __init__(self) -> None:
        self.replies: dict[str, dict[str, Value]] = {}

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Keep a reply."""
        self.replies[client] = values

    def skip(self, client: str) -> None:
        """Do without a client."""

    def take_due(self) -> None:
        """Do nothing, as no reply is due before the others."""


class OrderedCollector(ABC):
    """Takes replies in the order of client ids as they arrive; those that come before their turn are kept.

    order: client ids in order.
    """

    def __init__(self, order: Sequence[str], buffer_bytes: int) -> None:
        self.buffer_bytes: int | None = buffer_bytes
        self._left = OrderedDict.fromkeys(order)  # clients whose replies are not taken yet
        self._ready: dict[str, dict[str, Value]] = {}

    @property
    def due(self) -> str | None:
        """Client whose reply is here and is next."""
        first = next(iter(self._left), None)
        return first if first in self._ready else None

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Keep a reply until its turn."""
        self._ready[client] = values

    def skip(self, client: str) -> None:
        """Take the others without this one."""
        self._left.pop(client, None)
        self._ready.pop(client, None)

    def take_due(self) -> None:
        """Take the reply that is due."""
        client, _ = self._left.popitem(last=False)
        self.take(client, self._ready.pop(client))

    @abstractmethod
    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Take a client's reply: it is its turn."""


class VisitCollector(OrderedCollector):
    """Hands each reply on, and keeps none (:meth:`fenchel.fleet.cohort.Cohort.visit`)."""

    def __init__(
        self, order: Sequence[str], buffer_bytes: int, look: Callable[[str, Mapping[str, Value]], None]
    ) -> None:
        super().__init__(order, buffer_bytes)
        self._look = look

    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Let the caller look at a reply."""
        self._look(client, values)


class SumCollector(OrderedCollector):
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
            entries = entries_of(value)
            if entries is not None and entries.indices is not None:
                self._fold_entries(name, entries.indices, entries.values, entries.shape, factor)
            elif name != self._weight:
                array = array_of(name, value)
                if self._dtype is not None:
                    array = array.astype(self._dtype, copy=False)
                if name in self._sparse:
                    self._fold_entries(name, slice(None), array, array.shape, factor)
                else:
                    self._totals.setdefault(name, WeightedSum()).add(array, factor)

    def _fold_entries(
        self, name: str, which: Indices | slice, entries: Array, shape: tuple[int, ...], factor: float
    ) -> None:
        if name not in self._sparse:
            dense = self._totals.pop(name, None)  # others may have given every entry
            self._sparse[name] = np.zeros(shape, self._dtype or entries.dtype) if dense is None else dense.sum()
            self._coverage[name] = np.full(shape, 0.0 if dense is None else dense.weight)
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
