"""Collectors of the replies to one request. They keep all replies, or process each in the order of client ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Array
from fenchel.common.wire.codecs import entries_of
from fenchel.common.wire.values import Value
from fenchel.fleet.weighted_sum import WeightedSum


class Collector(Protocol):
    """Receiver of the replies to a request. Each reply is added on arrival, and taken when it is due.

    Attributes
    ----------
    buffer_bytes
        Size in bytes of the buffer for replies that arrive before their turn; ``None``: all replies are held until the
        last has arrived.
    """

    buffer_bytes: int | None

    @property
    def due(self) -> str | None:
        """Client whose reply has arrived and is next in order; ``None`` if there is none."""
        ...

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Add a reply that has been checked."""
        ...

    def skip(self, client: str) -> None:
        """Continue without a client that failed or missed the deadline."""
        ...

    def take_due(self) -> None:
        """Process the reply that is due. The caller may then free its memory."""
        ...


def number_of(value: Value) -> float:
    """Return the weight of a reply as a float; raise ``TypeError`` if the value is not a number."""
    if isinstance(value, bool | int | float):
        return float(value)
    raise TypeError(f"a weight is a {type(value).__name__}, expected a number")


def array_of(name: str, value: Value) -> Array:
    """Return a value of a reply as a floating-point array; raise ``TypeError`` if the value is not numeric."""
    if isinstance(value, bool | int | float):
        return np.asarray(float(value))
    if (entries := entries_of(value)) is not None:
        array = entries.dense()
        # Integer sums could wrap, and integer means would be truncated.
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    raise TypeError(f"{name!r} is a {type(value).__name__}, which has no mean")


class GatherCollector:
    """Collector that keeps all replies (:meth:`fenchel.fleet.cohort.Cohort.ask`)."""

    buffer_bytes: int | None = None
    due: str | None = None

    def __init__(self) -> None:
        self.replies: dict[str, dict[str, Value]] = {}

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Keep a reply."""
        self.replies[client] = values

    def skip(self, client: str) -> None:
        """Do nothing."""

    def take_due(self) -> None:
        """Do nothing, as no reply is ever due."""


class OrderedCollector(ABC):
    """Base class of collectors that process replies in the order of client ids, and buffer those that arrive early.

    Parameters
    ----------
    order
        Client ids in order.
    buffer_bytes
        Size of the buffer in bytes.
    """

    def __init__(self, order: Sequence[str], buffer_bytes: int) -> None:
        self.buffer_bytes: int | None = buffer_bytes
        self._left = OrderedDict.fromkeys(order)  # clients whose replies have not been taken yet, in order
        self._ready: dict[str, dict[str, Value]] = {}

    @property
    def due(self) -> str | None:
        """Client whose reply has arrived and is next in order; ``None`` if there is none."""
        first = next(iter(self._left), None)
        return first if first in self._ready else None

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Keep a reply until its turn."""
        self._ready[client] = values

    def skip(self, client: str) -> None:
        """Remove a client from the order, and drop its buffered reply."""
        self._left.pop(client, None)
        self._ready.pop(client, None)

    def take_due(self) -> None:
        """Process the reply that is due."""
        client, _ = self._left.popitem(last=False)
        self.take(client, self._ready.pop(client))

    @abstractmethod
    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Process the reply of a client whose turn it is."""


class VisitCollector(OrderedCollector):
    """Collector that passes each reply to a function and keeps none (:meth:`fenchel.fleet.cohort.Cohort.visit`)."""

    def __init__(
        self, order: Sequence[str], buffer_bytes: int, look: Callable[[str, Mapping[str, Value]], None]
    ) -> None:
        super().__init__(order, buffer_bytes)
        self._look = look

    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Call the function with a reply."""
        self._look(client, values)


class SumCollector(OrderedCollector):
    """Weighted sums of the replies, added up in the order of client ids as they arrive."""

    def __init__(
        self, order: Sequence[str], weight: str | None, buffer_bytes: int, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(order, buffer_bytes)
        self._weight = weight
        self._dtype = dtype
        self._sums: dict[str, WeightedSum] = {}
        self.weight = 0.0  # sum of the weights of the replies; without weights, the number of replies

    def take(self, client: str, values: Mapping[str, Value]) -> None:
        """Add a reply to the sums."""
        factor = 1.0 if self._weight is None else number_of(values[self._weight])
        self.weight += factor
        for name, value in values.items():
            if name == self._weight:
                continue
            total, entries = self._sums.setdefault(name, WeightedSum()), entries_of(value)
            if entries is not None and entries.indices is not None:
                total.add_entries(entries.indices, entries.values, entries.shape, factor, self._dtype)
            else:
                array = array_of(name, value)
                total.add(array if self._dtype is None else array.astype(self._dtype, copy=False), factor)

    def coverage(self, name: str) -> Array:
        """Return, for each entry of a sparse vector, the total weight of the replies that stored this entry.

        Parameters
        ----------
        name : str
            Name of the vector in the replies.

        Returns
        -------
        Array, shape (size,)
            Sum of the weights of these replies, for each entry.

        Raises
        ------
        KeyError
            If the replies have no value of this name.
        ValueError
            If there are no replies.
        """
        return self._sum_of(name).coverage

    def sum(self, name: str) -> Array:
        """Return the weighted sum of an array or number over the replies.

        Parameters
        ----------
        name : str
            Name of the value in the replies.

        Returns
        -------
        Array
            Sum, zero in entries that no reply stored.

        Raises
        ------
        KeyError
            If the replies have no value of this name.
        ValueError
            If there are no replies.
        """
        return self._sum_of(name).sum()

    def mean(self, name: str) -> Array:
        """Return the weighted mean of an array or number over the replies.

        Parameters
        ----------
        name : str
            Name of the value in the replies.

        Returns
        -------
        Array
            Mean, a new array. The divisor is the weight of all replies, also in entries that some did not store.

        Raises
        ------
        KeyError
            If the replies have no value of this name.
        ZeroDivisionError
            If the weights add up to zero, or there are no replies.
        """
        if not self.weight:
            raise ZeroDivisionError(f"the weights of {name!r} add up to zero")
        return self._sum_of(name).mean()

    def _sum_of(self, name: str) -> WeightedSum:
        """Return the sum of a value by name; raise ``ValueError`` before the first reply."""
        if not self._sums:
            raise ValueError(
                f"no client has replied, so the sum of {name!r} has no shape; check for replies first, or ask with "
                "min_replies above 0"
            )
        return self._sums[name]
