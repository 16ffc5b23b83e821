"""The part of the fleet that a phase addresses: what it is asked and told, and how its replies come together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from numpy.typing import DTypeLike

from fenchel.common.settings.participation import PhaseTerms
from fenchel.common.wire.frames import Body
from fenchel.common.wire.schema import ArraySpec, Expectation, Expected, check
from fenchel.common.wire.values import Array, Value, Values
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.fleet.addressing import Each, encoded, for_client, forms_of
from fenchel.server.fleet.client_record import ClientRecord
from fenchel.server.fleet.collectors import Collector, Folded, Gathered, Visited, array_of, number_of
from fenchel.server.fleet.memory_budget import Size
from fenchel.server.fleet.quorum import quorum
from fenchel.server.fleet.request import Request
from fenchel.server.fleet.roster import Roster
from fenchel.server.fleet.weighted_sum import WeightedSum


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
        """Return the sum of an array (or number) over the replies."""
        return self._total(name).sum()

    def mean(self, name: str) -> Array:
        """Return the mean over the replies, each with the same weight."""
        return self._total(name).mean()

    def weighted_mean(self, name: str, weight: str) -> Array:
        """Return the mean over the replies, weighted by another of their values.

        Raises
        ------
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


class Reduced(Folded):
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
    roster
        All clients of the run.
    draws
        Client ids in order; one that was drawn twice (sampling with replacement) stands here twice but
        is asked once.
    waits
        Whether the run waits for its quorum beyond a deadline, where the settings say so.
    """

    roster: Roster
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
        """
        gathered = Gathered()
        answered = await self._exchange(phase, pb.ASK, gathered, returns, deadline, min_replies, values, verify)
        return Replies(gathered.replies, self.only(set(answered).__contains__))

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

        Other parameters and errors as for :meth:`ask`.
        """
        for name, expected in returns.items():
            if (
                expected is str
                or isinstance(expected, Each)
                or (isinstance(expected, ArraySpec) and None in expected.shape)
            ):
                raise TypeError(f"reduce({phase!r}): {name!r} must be a number or an array of one fixed shape")
        reduced = Reduced(self.clients, weight, self.roster.network.reply_buffer_bytes, dtype)
        answered = await self._exchange(phase, pb.ASK, reduced, returns, deadline, min_replies, values)
        reduced.cohort = self.only(set(answered).__contains__)
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
        in_order = Visited(self.clients, self.roster.network.reply_buffer_bytes, take)
        answered = await self._exchange(phase, pb.ASK, in_order, returns, deadline, min_replies, values)
        return self.only(set(answered).__contains__)

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
        """
        gathered = Gathered()
        answered = await self._exchange(phase, pb.INSPECT, gathered, returns, None, 1, values, verify)
        return Replies(gathered.replies, self.only(set(answered).__contains__))

    async def tell(self, phase: str, **values: Value | Each[Value]) -> None:
        """Tell each client to do something.

        A promise: every client does it, before anything else that it is asked later, even if it is away
        now. Returns at once. A client that has ``network.promised_bytes`` before it already is lost.
        """
        roster = self.roster
        trace = roster.traced(phase, roster.round)
        for client, body in self._bodies(values):
            body.detach()  # it may be sent much later
            member = roster.members[client]
            if member.owed_bytes >= roster.network.promised_bytes:
                member.lose(_too_far_behind(member, roster.network.promised_bytes))
            if member.lost is None:
                roster.calls.append(member.post(phase, roster.round, pb.TELL, body, traceparent=trace))

    async def _exchange(
        self,
        phase: str,
        kind: pb.Kind.ValueType,
        collector: Collector,
        returns: Mapping[str, Expected | Each[Expected]] | None,
        deadline: float | None,
        min_replies: int | None,
        values: Mapping[str, Value | Each[Value]],
        verify: Callable[[str, Values], None] | None = None,
    ) -> list[str]:
        roster = self.roster
        expected = returns or {}

        t = roster.round
        differs = any(isinstance(value, Each) for value in expected.values())
        same: dict[str, Expected] = {} if differs else for_client(expected, "")

        def checked(client: str, reply: Values, finite: bool) -> None:
            wanted: dict[str, Expected] = for_client(expected, client) if differs else same
            check(reply, wanted, finite=finite, round=t, phase=phase, client=client)
            if verify is not None:
                verify(client, reply)

        participation = roster.participation
        terms = participation.phases.get(phase) or PhaseTerms()
        waits = self.waits and participation.on_shortage == "wait"
        sizes = self._sizes(expected, same)
        room = roster.memory_budget.room(f"round {roster.round}, phase {phase!r}", sizes, collector.buffer_bytes)
        request = Request(
            phase,
            roster.round,
            collector,
            checked,
            terms.deadline or deadline or participation.deadline,
            room,
            forms_of(expected),
            values=len(expected),
            patience=participation.patience,
            lacks=roster.lacks if waits else None,
        )
        trace = roster.traced(phase, roster.round)
        bodies = set()
        for client, body in self._bodies(values):
            bodies.add(body)
            member = roster.members[client]
            if member.takes_part:
                call = member.post(phase, roster.round, kind, body, request, traceparent=trace)
                request.expect(member, call)
                roster.calls.append(call)
            else:
                collector.skip(client)
        roster.meanwhile()
        needed, setting = quorum(participation, phase, terms.min_replies, min_replies)
        with room:
            answered = await roster.finish(request, needed, setting)
        for body in bodies:
            body.detach()  # somebody who did not answer in time may still be receiving it
        roster.check_lost()
        return list(answered)

    def _sizes(
        self, expected: Mapping[str, Expected | Each[Expected]], same: Mapping[str, Expected]
    ) -> dict[str, Size]:
        """Return how large the reply of each client can be; ``same``: what is wanted of all, if it is the same."""
        clients = [client for client in self.clients if self.roster.members[client].takes_part]
        if expected and not same:
            return {client: Size.of(for_client(expected, client)) for client in clients}
        return dict.fromkeys(clients, Size.of(same))

    def _bodies(self, values: Mapping[str, Value | Each[Value]]) -> Iterator[tuple[str, Body]]:
        """Yield each client's body; what is the same for all is encoded once."""
        if any(isinstance(value, Each) for value in values.values()):
            for client in self.clients:
                yield client, encoded(for_client(values, client))
        else:
            shared = encoded(for_client(values, ""))
            for client in self.clients:
                yield client, shared


def _too_far_behind(member: ClientRecord, limit: int) -> str:
    first = next(member.tells())
    where = "is slow to follow" if member.connected else "has been away for long"
    return (
        f"it {where}: all that it was told since round {first.round}, {member.owed_bytes:,} bytes, it still has to do, "
        f"and no more than {limit:,} are kept for one client (network.promised_bytes). Bring it back, or to a faster "
        "line, and go on with --resume RUN: it catches up"
    )
