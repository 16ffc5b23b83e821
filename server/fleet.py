"""All clients of a run, and the parts of it that a phase addresses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from common.errors import LostStateError
from common.expectation import ArraySpec, Expectation, Expected, Form, check
from common.frames import Body
from common.payload import Value, Values, encode
from common.randomness import generator
from common.settings.participation import AllClients, Participation, PhaseTerms, Sampler
from common.settings.run import Network
from proto import fenchel_pb2 as pb
from server.attendance import Attendance
from server.calls import Call
from server.exchange import Collector, Exchange
from server.in_flight import InFlight, Size
from server.member import Member
from server.quorum import Shortfall, nobody_left
from server.replies import Gathered, Reduced, Replies, Visited
from server.sampling import Shortage, draw, has_places

log = logging.getLogger("fenchel.server")

T = TypeVar("T")


@dataclass(frozen=True)
class Each(Generic[T]):
    """A different value for each client, by client id."""

    values: Mapping[str, T]


def _for_client(values: Mapping[str, T | Each[T]], client: str) -> dict[str, T]:
    return {
        name: value.values[client] if isinstance(value, Each) else value for name, value in values.items()
    }


async def _nothing_to_save() -> None:
    """Stand in for who saves the run, where nobody does."""


@dataclass
class Fleet:
    """The clients of a run.

    Attributes
    ----------
    members
        By client id, in order of ids.
    seed, participation, reply_buffer_bytes, promised_bytes
        From the settings.
    round
        The round that is going on.
    calls
        Every instruction of this round, for the record.
    traced
        Given a phase and its round, returns the trace context that goes with its instructions; empty: nobody traces.
    in_flight
        What may be held of replies.
    waits
        Told in a few words what the run waits for beyond a deadline; empty: nothing any more.
    saved
        The round after which the last checkpoint was written; ``None``: there is none yet.
    secure
        Called when the run waits beyond a deadline: saves it as it was between the last two rounds.
    meanwhile
        Called when the instructions of an exchange have been handed over, before its replies are awaited.
    admitting
        Whether a newcomer is being taken in. The run does not wait for one beyond a deadline: it may come again.
    """

    members: dict[str, Member]
    seed: int
    participation: Participation
    reply_buffer_bytes: int
    promised_bytes: int = Network().promised_bytes
    round: int = 0
    calls: list[Call] = field(default_factory=list)
    traced: Callable[[str, int], str] = lambda phase, t: ""
    in_flight: InFlight = field(default_factory=InFlight)
    waits: Callable[[str], None] = lambda words: None
    saved: int | None = None
    secure: Callable[[], Awaitable[None]] = _nothing_to_save
    meanwhile: Callable[[], None] = lambda: None
    admitting: bool = False
    _lacking: dict[Exchange, Shortfall] = field(default_factory=dict)
    _telling: set[asyncio.Task[None]] = field(default_factory=set)
    _shortage: Shortage = field(default_factory=Shortage)

    @property
    def present(self) -> list[Member]:
        """Members that the run asks: not lost, and with a privacy budget left; in order of ids."""
        return [member for member in self.members.values() if member.takes_part]

    @property
    def spent(self) -> list[str]:
        """Ids of clients that have spent their privacy budgets."""
        return [member.name for member in self.members.values() if member.spent is not None]

    def exhausted(self) -> str:
        """Say why no client can be asked any more, if their privacy budgets are spent; empty if one can."""
        spent = self.spent
        if not spent or self.present:
            return ""
        return f"{len(spent)} of {len(self.members)} clients have spent their privacy budgets, and no other is left"

    @property
    def is_short(self) -> bool:
        """Whether the next phase will have to wait: fewer clients are connected than the settings want replies."""
        if self.participation.on_shortage == "stop":
            return False
        present = self.present
        _, needed = self.participation.most_replies()
        return sum(member.connected for member in present) < min(needed, len(present))

    async def kept_promises(self, patience: float) -> None:
        """Wait until every client that is connected has done what it was told, or ``patience`` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(member.connected and member.outstanding for member in self.members.values()):
                    await asyncio.sleep(0.005)

    def admit(self, newcomer: Member) -> Cohort:
        """Take a client in, between two rounds; return the cohort of it alone."""
        self._renew([*self.members.values(), newcomer])
        return Cohort(self, (newcomer.name,))

    def dismiss(self, member: Member) -> None:
        """Take a client out again that :meth:`admit` took in, before it was told anything."""
        self._renew([other for other in self.members.values() if other is not member])

    def _renew(self, members: Iterable[Member]) -> None:
        # In place, as the coordinator refers to them, too.
        ordered = sorted(members, key=lambda member: member.name)
        self.members.clear()
        for index, member in enumerate(ordered):
            member.index = index
            self.members[member.name] = member

    def check_lost(self) -> None:
        """Stop the run if a client is lost and the settings do not say to go on without it.

        Raises
        ------
        LostStateError
            Naming the client and what it lost.
        """
        if self.participation.on_lost_state == "continue":
            return
        for member in self.members.values():
            if member.lost is not None:
                raise LostStateError(
                    f"client {member.name}: {member.lost}. The run stops, because the algorithm's state on the "
                    "clients would no longer add up. Where that cannot be cured, begin a new run; with "
                    "participation.on_lost_state: continue it would go on without such a client"
                )

    def note_attendance(self, calls: Iterable[Call]) -> None:
        """Note who has answered in this round, and who was asked and has not, as its record says.

        Who answered but could not do what it was asked is not away.
        """
        asked = [
            call for call in calls if call.kind == pb.ASK and call.round == self.round and not call.kept_out
        ]
        answered = {call.client for call in asked if call.outcome in ("counted", "failed")}
        for client in answered:
            if self.members[client].attendance.missed:
                self.members[client].attendance = Attendance()
        patience = self.participation.patience
        for client in {call.client for call in asked} - answered:
            member = self.members[client]
            member.attendance = member.attendance.after(self.round, patience)
            if member.attendance.missed == patience and has_places(self.participation.sampler):
                log.warning(
                    "client %s has not answered in %d rounds in a row that asked it (participation.patience): its "
                    "place in cohorts goes to others, as far as there are enough, until round %d, and then again for "
                    "ever longer, until it answers",
                    client,
                    patience,
                    member.attendance.back,
                )

    async def finish(self, exchange: Exchange, min_replies: int, setting: str) -> Sequence[str]:
        """Wait for the replies of an exchange, and say so where that takes longer than its deadline.

        Parameters and errors as for :meth:`Exchange.finish`, and :meth:`check_lost`.
        """
        try:
            return await exchange.finish(min_replies, setting)
        finally:
            if self._lacking.pop(exchange, None) is not None:
                self._say_what_lacks()

    def lacks(self, exchange: Exchange, shortfall: Shortfall, tell: bool) -> None:
        """Note that an exchange waits for its quorum; ``tell``: it is time to say so in the log."""
        self.check_lost()
        self._lacking[exchange] = shortfall
        if tell:
            telling = asyncio.create_task(self._save_and_tell(exchange))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
        self._say_what_lacks()

    async def _save_and_tell(self, exchange: Exchange) -> None:
        """Say in the log that the run waits, and what is saved; nothing, if it goes on meanwhile."""
        await self.secure()
        shortfall = self._lacking.get(exchange)
        if shortfall is not None:
            log.warning("%s", shortfall.warning(self.saved))

    def _say_what_lacks(self) -> None:
        self.waits("; ".join(shortfall.status for shortfall in self._lacking.values()))

    def all(self) -> Cohort:
        """Return everybody."""
        return Cohort(self, tuple(member.name for member in self.present))

    def sample(
        self,
        sampler: Sampler | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        draw_name: str = "cohort",
    ) -> Cohort:
        """Draw a cohort for this round.

        Parameters
        ----------
        sampler
            How; default ``participation.sampler``.
        weights
            Weight of each client, for a weighted sampler; default: its number of samples.
        draw_name
            Tells several draws of one round apart.
        """
        present = self.present
        if not present:
            raise nobody_left(self.round, len(self.members), self.exhausted())
        sampler = sampler or self.participation.sampler
        if isinstance(sampler, AllClients):
            return self.all()
        if weights is None:
            values = [float(member.shard.samples) if member.shard else 0.0 for member in present]
        else:
            values = [weights[member.name] for member in present]
        random = generator(self.seed, "server", self.round, draw_name)
        lost = len(self.members) - len(present)
        absent = [i for i, member in enumerate(present) if member.attendance.is_out(self.round)]
        drawn = draw(sampler, np.array(values), self.round, random, lost=lost, absent=absent)
        self._shortage.tell(sampler, len(present), lost, self.round)
        return Cohort(self, tuple(present[i].name for i in drawn))


@dataclass(frozen=True)
class Cohort:
    """Some clients of the fleet, whom a phase addresses together.

    Attributes
    ----------
    draws
        Client ids in order; one that was drawn twice (sampling with replacement) stands here twice but
        is asked once.
    """

    fleet: Fleet
    draws: tuple[str, ...]

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
        return Cohort(self.fleet, tuple(client for client in self.draws if clients(client)))

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
            Raises ``PayloadError`` for a client whose values, as expected one by one, cannot be true together: it has
            failed in this phase.
        returns
            What each reply must hold; default: nothing. Anything else is refused.
        deadline, min_replies
            Default: from ``participation``. With ``min_replies=0`` nobody need answer. Where ``participation.phases``
            names the phase, its deadline comes first, and it may want more replies, not fewer.
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
        answered = await self._exchange(
            phase, pb.ASK, gathered, returns, deadline, min_replies, values, verify
        )
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
                raise TypeError(
                    f"reduce({phase!r}): {name!r} must be a number or an array of one fixed shape"
                )
        reduced = Reduced(self.clients, weight, self.fleet.reply_buffer_bytes, dtype)
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
        in_order = Visited(self.clients, self.fleet.reply_buffer_bytes, take)
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
        fleet = self.fleet
        trace = fleet.traced(phase, fleet.round)
        for client, body in self._bodies(values):
            body.detach()  # it may be sent much later
            member = fleet.members[client]
            if member.owed_bytes >= fleet.promised_bytes:
                member.lose(_too_far_behind(member, fleet.promised_bytes))
            if member.lost is None:
                call = member.post(phase, fleet.round, pb.TELL, body)
                call.traceparent = trace
                fleet.calls.append(call)

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
        fleet = self.fleet
        expected = returns or {}

        source = f"round {fleet.round}, phase {phase!r}, client "
        differs = any(isinstance(value, Each) for value in expected.values())
        same: dict[str, Expected] = {} if differs else _for_client(expected, "")

        def checked(client: str, reply: Values, finite: bool) -> None:
            wanted: dict[str, Expected] = _for_client(expected, client) if differs else same
            check(reply, wanted, source + client, finite=finite)
            if verify is not None:
                verify(client, reply)

        participation = fleet.participation
        terms = participation.phases.get(phase) or PhaseTerms()
        waits = participation.on_shortage == "wait" and not fleet.admitting
        sizes = self._sizes(expected, same)
        room = fleet.in_flight.room(f"round {fleet.round}, phase {phase!r}", sizes, collector.buffer_bytes)
        collector.enter(room)
        exchange = Exchange(
            phase,
            fleet.round,
            collector,
            checked,
            terms.deadline or deadline or participation.deadline,
            lambda client: sizes[client].most,
            _forms(expected),
            values=len(expected),
            patience=participation.patience,
            lacks=fleet.lacks if waits else None,
        )
        trace = fleet.traced(phase, fleet.round)
        bodies = set()
        for client, body in self._bodies(values):
            bodies.add(body)
            member = fleet.members[client]
            if member.takes_part:
                call = member.post(phase, fleet.round, kind, body, exchange)
                call.traceparent = trace
                exchange.expect(member, call)
                fleet.calls.append(call)
            else:
                collector.skip(client)
        fleet.meanwhile()
        needed, setting = _quorum(participation, phase, terms.min_replies, min_replies)
        with room:
            answered = await fleet.finish(exchange, needed, setting)
        for body in bodies:
            body.detach()  # somebody who did not answer in time may still be receiving it
        fleet.check_lost()
        return list(answered)

    def _sizes(
        self, expected: Mapping[str, Expected | Each[Expected]], same: Mapping[str, Expected]
    ) -> dict[str, Size]:
        """Return how large the reply of each client can be; ``same``: what is wanted of all, if it is the same."""
        clients = [client for client in self.clients if self.fleet.members[client].takes_part]
        if expected and not same:
            return {client: Size.of(_for_client(expected, client)) for client in clients}
        return dict.fromkeys(clients, Size.of(same))

    def _bodies(self, values: Mapping[str, Value | Each[Value]]) -> Iterator[tuple[str, Body]]:
        """Yield each client's body; what is the same for all is encoded once."""
        if any(isinstance(value, Each) for value in values.values()):
            for client in self.clients:
                yield client, _body(_for_client(values, client))
        else:
            shared = _body(_for_client(values, ""))
            for client in self.clients:
                yield client, shared


def _too_far_behind(member: Member, limit: int) -> str:
    first = next(member.tells())
    where = "is slow to follow" if member.connected else "has been away for long"
    return (
        f"it {where}: all that it was told since round {first.round}, {member.owed_bytes:,} bytes, it still has to do, "
        f"and no more than {limit:,} are kept for one client (network.promised_bytes). Bring it back, or to a faster "
        "line, and go on with --resume RUN: it catches up"
    )


def _quorum(
    participation: Participation, phase: str, wanted: int | None, needed: int | None
) -> tuple[int, str]:
    """Return how many replies a phase needs, and which key, or who, says so.

    Parameters
    ----------
    participation
        What the settings say of all phases.
    phase, wanted
        What they say of this one.
    needed
        What the algorithm says.
    """
    key = f"participation.phases.{phase}.min_replies"
    if needed is None:
        return (participation.min_replies, "participation.min_replies") if wanted is None else (wanted, key)
    if wanted is not None and wanted > needed:
        return wanted, key
    return needed, f"as phase {phase!r} cannot do with fewer"


def _forms(expected: Mapping[str, Expected | Each[Expected]]) -> dict[str, Form]:
    """Return in what form each value of the replies is declared to come."""
    specs = {
        name: next(iter(each.values.values()), None) if isinstance(each, Each) else each
        for name, each in expected.items()
    }
    return {name: spec.form if isinstance(spec, ArraySpec) else "clear" for name, spec in specs.items()}


def _body(values: dict[str, Value]) -> Body:
    """Encode values; arrays that will be sent without a copy become read-only, so that no change slips in."""
    body = Body(encode(values))
    if body.refers_to_arrays:
        for value in values.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    return body
