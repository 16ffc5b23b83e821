"""Cohorts: the clients that a phase addresses, the requests to them, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from numpy.typing import DTypeLike

from fenchel.common.arrays import Array
from fenchel.common.wire.schema import ArraySpec, Expectation, Expected
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.collectors import Collector, GatherCollector, SumCollector, VisitCollector, array_of, number_of
from fenchel.fleet.question import Each, Question, Questioner
from fenchel.fleet.weighted_sum import WeightedSum
from fenchel.proto import fenchel_pb2 as pb


class Replies(Mapping[str, Mapping[str, Value]]):
    """Replies to one request, a mapping from client ids to the values of each reply.

    :meth:`fenchel.Cohort.ask` returns it. Iteration, sums and means are in the order of client ids, so results do not
    depend on the order of arrival.

    Parameters
    ----------
    replies : Mapping[str, Values]
        Values of each reply, by client id.
    cohort : Cohort
        Clients that replied, kept as the attribute ``cohort`` for the next request.
    """

    def __init__(self, replies: Mapping[str, Mapping[str, Value]], cohort: Cohort) -> None:
        self._replies = {client: replies[client] for client in sorted(replies)}
        self.cohort = cohort

    def __getitem__(self, client: str) -> Mapping[str, Value]:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def values_of(self, name: str) -> list[Value]:
        """Return the value with one name from every reply.

        Parameters
        ----------
        name : str
            Name of the value.

        Returns
        -------
        list[Value]
            Values in the order of client ids.

        Raises
        ------
        KeyError
            If a reply has no value of this name.
        """
        return [reply[name] for reply in self._replies.values()]

    def sum(self, name: str) -> Array:
        """Return the sum of an array or number over the replies.

        Parameters
        ----------
        name : str
            Name of the value.

        Returns
        -------
        Array
            Sum in the dtype of the arrays, or float64 if they do not hold floating-point numbers.

        Raises
        ------
        KeyError
            If a reply has no value of this name.
        TypeError
            If the value is neither an array nor a number.
        ValueError
            If there are no replies.
        """
        if not self:
            raise ValueError(
                f"no client has replied, so the sum of {name!r} has no shape; check for replies first, or ask with "
                "min_replies above 0"
            )
        return self._total(name).sum()

    def mean(self, name: str) -> Array:
        """Return the mean of an array or number over the replies, with equal weights.

        Parameters
        ----------
        name : str
            Name of the value.

        Returns
        -------
        Array
            Mean, a new array of the dtype of the sum.

        Raises
        ------
        KeyError
            If a reply has no value of this name.
        TypeError
            If the value is neither an array nor a number.
        ZeroDivisionError
            If there are no replies.
        """
        if not self:
            raise ZeroDivisionError(
                f"no client has replied, so there is no mean of {name!r}; check for replies first, or ask with "
                "min_replies above 0"
            )
        return self._total(name).mean()

    def weighted_mean(self, name: str, weight: str) -> Array:
        """Return the mean of an array or number over the replies, weighted by another of their values.

        Parameters
        ----------
        name : str
            Name of the value.
        weight : str
            Name of the number that weights each reply, such as the number of samples.

        Returns
        -------
        Array
            Weighted mean, a new array of the dtype of the sum.

        Raises
        ------
        KeyError
            If a reply has no value of this name or weight.
        TypeError
            If the value is neither an array nor a number, or the weight is not a number.
        ZeroDivisionError
            If the weights add up to zero, or there are no replies.
        """
        try:
            return self._total(name, weight).mean()
        except ZeroDivisionError:
            raise ZeroDivisionError(f"the weights of {name!r}, called {weight!r}, add up to zero") from None

    def _total(self, name: str, weight: str | None = None) -> WeightedSum:
        total = WeightedSum()
        for reply in self._replies.values():
            total.add(array_of(name, reply[name]), 1.0 if weight is None else number_of(reply[weight]))
        return total


class Reduced(SumCollector):
    """Weighted sums of the replies to one request, without the replies themselves.

    :meth:`fenchel.Cohort.reduce` returns it. ``sum(name)`` and ``mean(name)`` are over the replies, in the order of
    client ids. ``coverage(name)`` is the weight of the replies that stored each entry of a
    :class:`fenchel.SparseVector`.

    Attributes
    ----------
    cohort : Cohort
        Clients that replied.
    weight : float
        Sum of the weights of the replies, or their number if the request named no weight.
    """

    cohort: Cohort


@dataclass(frozen=True)
class Cohort:
    """Clients of the fleet that a phase addresses together.

    :meth:`fenchel.Algorithm.sample`, :meth:`fenchel.Fleet.sample` and :meth:`fenchel.Fleet.all` return one. Iteration
    and ``len`` are over client ids, each once. A client answers one request at a time: await a request before the next
    one.

    A phase takes effect on each client exactly once or not at all, whatever processes are killed (docs/concepts.md).

    Parameters
    ----------
    fleet : Fleet
        Fleet that carries the requests.
    draws : tuple[str, ...]
        Client ids in order. An id that was drawn twice, in sampling with replacement, appears twice. The client
        receives one request.
    waits : bool, default True
        True if the run may wait for the quorum beyond the deadline (``participation.on_shortage: wait``).
    """

    fleet: Questioner
    draws: tuple[str, ...]
    waits: bool = True

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids in order, each once."""
        return tuple(sorted(set(self.draws)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def only(self, clients: Callable[[str], bool]) -> Cohort:
        """Return the clients of the cohort that satisfy a condition.

        Parameters
        ----------
        clients : callable
            Function of a client id that returns a bool.

        Returns
        -------
        Cohort
            Cohort of the clients for which the function returns true.
        """
        return replace(self, draws=tuple(client for client in self.draws if clients(client)))

    async def ask(
        self,
        phase: str,
        verify: Callable[[str, Values], None] | None = None,
        /,
        *,
        returns: Mapping[str, Expected | Each[Expected]] | None = None,
        deadline: float | None = None,
        min_replies: int | None = None,
        **values: Value | Each[Value],
    ) -> Replies:
        """Send a request for a phase, and wait for the replies until the deadline.

        The effect of a phase on a client that misses the deadline is undone.

        Parameters
        ----------
        phase : str
            Phase, named as by :func:`fenchel.answers`.
        verify : callable, optional
            Function of a client id and its values that raises ``PayloadError`` if the values contradict each other. The
            client has then failed in this phase. It is called after each value was checked against ``returns``.
        returns : Mapping[str, Expected or Each], optional
            Schema of a reply: for each name an array (same dtype and shape), ``int``, ``float``, ``bool``, ``str``,
            :class:`fenchel.ArraySpec` or :class:`fenchel.NumberSpec`. Other replies are rejected. Default: empty
            replies.
        deadline : float, optional
            Deadline for the replies in seconds. Default: ``participation.deadline``. A deadline in
            ``participation.phases`` takes precedence.
        min_replies : int, optional
            Quorum, capped at the size of the cohort; 0: no reply is required. Default: ``participation.min_replies``.
            ``participation.phases`` can raise a given value, but not lower it.
        **values : Value or Each
            Values to send. An array above 64 MiB that is the same for all clients is sent without a copy and becomes
            read-only.

        Returns
        -------
        Replies
            Replies that count, by client id.

        Raises
        ------
        TooFewRepliesError
            If fewer than ``min_replies`` clients replied, and no more can. Also raised at the deadline if
            ``participation.on_shortage`` is ``stop``.
        LostStateError
            If a client has lost its state or is too far behind, and ``participation.on_lost_state`` is ``stop``.
        SettingsError
            If the replies to be held at once exceed ``network.in_flight_bytes``.
        PayloadError
            If a value cannot be sent, because its type or dtype is not supported.
        KeyError
            If a :class:`fenchel.Each` has no value for a client of the cohort.
        RuntimeError
            If an earlier request to one of the clients is still open.
        """
        question = self._question(
            phase, pb.ASK, values, returns or {}, verify, deadline=deadline, min_replies=min_replies
        )
        gathered = GatherCollector()
        answered = await self._put(question, gathered)
        return Replies(gathered.replies, answered)

    async def reduce(
        self,
        phase: str,
        *,
        returns: Mapping[str, Expected | Each[Expected]],
        weight: str | None = None,
        dtype: DTypeLike | None = None,
        deadline: float | None = None,
        min_replies: int | None = None,
        **values: Value | Each[Value],
    ) -> Reduced:
        """Send a request for a phase, and add up the replies as they arrive.

        The server's memory does not grow with the number of clients, which suits large models.

        Parameters
        ----------
        phase : str
            Phase, named as by :func:`fenchel.answers`.
        returns : Mapping[str, Expected]
            Schema of a reply, as for :meth:`fenchel.Cohort.ask`, with numbers and arrays of fixed shape only.
        weight : str, optional
            Name of the number in each reply that weights its other values. Default: weight 1 for each reply.
        dtype : DTypeLike, optional
            Dtype of the sums. Default: that of the arrays, or float64 if they do not hold floating-point numbers.
        deadline : float, optional
            Seconds, as for :meth:`fenchel.Cohort.ask`.
        min_replies : int, optional
            Quorum, as for :meth:`fenchel.Cohort.ask`.
        **values : Value or Each
            Values to send, as for :meth:`fenchel.Cohort.ask`.

        Returns
        -------
        Reduced
            Sums and means of the replies that count.

        Raises
        ------
        TypeError
            If a value in ``returns`` is neither a number nor an array of one shape for all clients.
        TooFewRepliesError, LostStateError, SettingsError, PayloadError, KeyError, RuntimeError
            See :meth:`fenchel.Cohort.ask`.
        """
        for name, expected in returns.items():
            if (
                expected is str
                or isinstance(expected, Each)
                or (isinstance(expected, ArraySpec) and (expected.shape is None or None in expected.shape))
            ):
                raise TypeError(f"reduce({phase!r}): {name!r} must be a number or an array of one fixed shape")
        reduced = Reduced(self.clients, weight, self.fleet.network.reply_buffer_bytes, dtype)
        question = self._question(phase, pb.ASK, values, returns, deadline=deadline, min_replies=min_replies)
        reduced.cohort = await self._put(question, reduced)
        return reduced

    async def visit(
        self,
        phase: str,
        take: Callable[[str, Values], None],
        *,
        returns: Mapping[str, Expected | Each[Expected]],
        deadline: float | None = None,
        min_replies: int | None = None,
        **values: Value | Each[Value],
    ) -> Cohort:
        """Send a request for a phase, and call a function with each reply in the order of client ids.

        This method serves sums that :meth:`fenchel.Cohort.reduce` does not provide. The server need not hold all
        replies at once.

        Parameters
        ----------
        phase : str
            Phase, named as by :func:`fenchel.answers`.
        take : callable
            Function of a client id and the values of its reply. It must not keep references to arrays.
        returns : Mapping[str, Expected or Each]
            Schema of a reply, as for :meth:`fenchel.Cohort.ask`.
        deadline : float, optional
            Seconds, as for :meth:`fenchel.Cohort.ask`.
        min_replies : int, optional
            Quorum, as for :meth:`fenchel.Cohort.ask`.
        **values : Value or Each
            Values to send, as for :meth:`fenchel.Cohort.ask`.

        Returns
        -------
        Cohort
            Clients that replied.

        Raises
        ------
        TooFewRepliesError, LostStateError, SettingsError, PayloadError, KeyError, RuntimeError
            See :meth:`fenchel.Cohort.ask`.
        """
        question = self._question(phase, pb.ASK, values, returns, deadline=deadline, min_replies=min_replies)
        return await self._put(question, VisitCollector(self.clients, self.fleet.network.reply_buffer_bytes, take))

    async def inspect(
        self,
        phase: str,
        verify: Callable[[str, Values], None] | None = None,
        /,
        *,
        returns: Expectation,
        **values: Value,
    ) -> Replies:
        """Send a request for a phase of the runtime that changes no state, such as evaluation.

        One reply is enough, unless ``participation.phases`` requires more for the phase.

        Parameters
        ----------
        phase : str
            Phase of the runtime.
        verify : callable, optional
            Check of a reply, as for :meth:`fenchel.Cohort.ask`.
        returns : Mapping[str, Expected]
            Schema of a reply, as for :meth:`fenchel.Cohort.ask`.
        **values : Value
            Values to send.

        Returns
        -------
        Replies
            Replies that count, by client id.

        Raises
        ------
        TooFewRepliesError, LostStateError, SettingsError, PayloadError, RuntimeError
            See :meth:`fenchel.Cohort.ask`.
        """
        question = self._question(phase, pb.INSPECT, values, returns, verify, min_replies=1)
        gathered = GatherCollector()
        answered = await self._put(question, gathered)
        return Replies(gathered.replies, answered)

    async def tell(self, phase: str, **values: Value | Each[Value]) -> None:
        """Queue an instruction, which each client of the cohort applies before later requests, even after a restart.

        The call returns at once. The handler of the phase returns nothing. A client whose unconfirmed instructions have
        reached ``network.promised_bytes`` is lost.

        Parameters
        ----------
        phase : str
            Phase, named as by :func:`fenchel.answers`.
        **values : Value or Each
            Values to send, as for :meth:`fenchel.Cohort.ask`.

        Raises
        ------
        PayloadError
            If a value cannot be sent, because its type or dtype is not supported.
        KeyError
            If a :class:`fenchel.Each` has no value for a client of the cohort.
        RuntimeError
            If an earlier request to one of the clients is still open.
        """
        self.fleet.tell(phase, self.clients, values)

    def _question(
        self,
        phase: str,
        kind: pb.Kind.ValueType,
        values: Mapping[str, Value | Each[Value]],
        returns: Mapping[str, Expected | Each[Expected]],
        verify: Callable[[str, Values], None] | None = None,
        *,
        deadline: float | None = None,
        min_replies: int | None = None,
    ) -> Question:
        return Question(
            phase=phase,
            kind=kind,
            clients=self.clients,
            values=values,
            returns=returns,
            verify=verify,
            deadline=deadline,
            min_replies=min_replies,
            waits=self.waits,
        )

    async def _put(self, question: Question, collector: Collector) -> Cohort:
        """Send a request, and return the cohort of the clients whose replies count."""
        return self.only(set(await self.fleet.exchange(question, collector)).__contains__)
