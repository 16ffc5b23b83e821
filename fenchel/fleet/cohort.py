"""The part of the fleet that a phase addresses: what it is asked and told, and how its replies come together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from numpy.typing import DTypeLike

from fenchel.common.arrays import Array
from fenchel.common.wire.schema import ArraySpec, Expectation, Expected
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.addressing import Each
from fenchel.fleet.collectors import Collector, GatherCollector, SumCollector, VisitCollector, array_of, number_of
from fenchel.fleet.question import Question, Questioner
from fenchel.fleet.weighted_sum import WeightedSum
from fenchel.proto import fenchel_pb2 as pb


class Replies(Mapping[str, Mapping[str, Value]]):
    """The replies to one question, by client id, in the order of ids.

    Attributes
    ----------
    cohort
        The clients that answered.
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
        """Return one value of every reply, in the order of client ids."""
        return [reply[name] for reply in self._replies.values()]

    def sum(self, name: str) -> Array:
        """Return the sum of an array (or number) over the replies.

        Raises
        ------
        TypeError
            The value is neither an array nor a number.
        ValueError
            There are no replies.
        """
        if not self:
            raise ValueError(f"no client has replied, so the sum of {name!r} has no shape")
        return self._total(name).sum()

    def mean(self, name: str) -> Array:
        """Return the mean over the replies, each with the same weight.

        Raises
        ------
        TypeError
            The value is neither an array nor a number.
        ZeroDivisionError
            There are no replies.
        """
        if not self:
            raise ZeroDivisionError(f"no client has replied, so there is no mean of {name!r}")
        return self._total(name).mean()

    def weighted_mean(self, name: str, weight: str) -> Array:
        """Return the mean over the replies, weighted by another of their values.

        Raises
        ------
        TypeError
            The value is neither an array nor a number, or a weight is not a number.
        ZeroDivisionError
            The weights add up to zero.
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
    """Sums of replies that were folded as they arrived.

    Attributes
    ----------
    cohort
        The clients that answered.
    """

    cohort: Cohort


@dataclass(frozen=True)
class Cohort:
    """Some clients of the fleet, whom a phase addresses together.

    Attributes
    ----------
    fleet
        Carries questions to the clients.
    draws
        Client ids in order; one that was drawn twice (sampling with replacement) stands here twice but
        is asked once.
    waits
        Whether the run waits for its quorum beyond a deadline, where the settings say so.
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
        """Return the part of the cohort for which ``clients`` holds."""
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
        """Ask a phase and wait for the replies.

        Parameters
        ----------
        phase
            Which handler of the client half answers.
        verify
            Raises ``PayloadError`` for a client whose values, as expected one by one, cannot be true
            together: it has failed in this phase.
        returns
            What each reply must hold; default: nothing. Anything else is refused.
        deadline, min_replies
            Default: from ``participation``. With ``min_replies=0`` nobody need answer. Where
            ``participation.phases`` names the phase, its deadline comes first, and it may want more replies,
            not fewer.
        **values
            Sent to each client; an :class:`Each` holds a different value for each. Arrays of more than
            64 MiB for everybody are sent without a copy and become read-only.

        Raises
        ------
        TooFewRepliesError
            Fewer than ``min_replies`` clients answered, and more no longer can, or did not in time while
            ``participation.on_shortage`` is ``stop``.
        LostStateError
            A client is lost, and ``participation.on_lost_state`` is ``stop``.
        SettingsError
            The replies that are held at once have more than ``network.in_flight_bytes``.
        RuntimeError
            Another question to one of the clients is still open.
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
        """Ask a phase and fold the replies as they arrive: for sums and means of large models.

        Parameters
        ----------
        weight
            Name of the value in each reply that weighs the others; default: each reply weighs 1.
        dtype
            In which the sums are kept; default: that of the arrays.

        Raises
        ------
        TypeError
            Something in ``returns`` is neither a number nor an array of one shape for all clients.

        Other parameters and errors as for :meth:`ask`.
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
        """Ask a phase and look at each reply once, in the order of client ids, as they arrive.

        For sums that :meth:`reduce` does not know, without holding all replies at once.

        Parameters
        ----------
        take
            Called with each client's id and its reply; it must not keep the arrays.

        Returns
        -------
        Cohort
            The clients that answered.

        Other parameters and errors as for :meth:`ask`.
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
        """Ask a phase of the runtime that changes no state (evaluation).

        Parameters
        ----------
        verify
            Raises ``PayloadError`` for a client whose values, as expected one by one, cannot be true together.

        Raises
        ------
        TooFewRepliesError
            No client answered, or fewer than ``participation.phases`` wants for the phase; see :meth:`ask`.

        Other errors as for :meth:`ask`.
        """
        question = self._question(phase, pb.INSPECT, values, returns, verify, min_replies=1)
        gathered = GatherCollector()
        answered = await self._put(question, gathered)
        return Replies(gathered.replies, answered)

    async def tell(self, phase: str, **values: Value | Each[Value]) -> None:
        """Tell each client to do something.

        A promise: every client does it, before anything else that it is asked later, even if it is away
        now. Returns at once. A client that has ``network.promised_bytes`` before it already is lost.
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
        """Have a question put to the clients; return those whose replies count."""
        return self.only(set(await self.fleet.exchange(question, collector)).__contains__)
