"""The clients of a run: who takes part, which of them a cohort has, and what goes on with them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fenchel.common.errors import LostStateError
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import AllClients, Participation, PhaseTerms, Sampler
from fenchel.common.settings.run import Network
from fenchel.common.wire.values import Value
from fenchel.fleet.addressing import Each
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.collectors import Collector
from fenchel.fleet.memory_budget import MemoryBudget
from fenchel.fleet.question import Question, bodies
from fenchel.fleet.quorum import Shortfall, Shortfalls, nobody_left, quorum
from fenchel.fleet.request import Request
from fenchel.fleet.sampling import SmallCohortWarning, draw, has_places
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")


@dataclass(kw_only=True)
class Fleet:
    """The clients of a run, and the cohorts of them."""

    members: dict[str, ClientRecord]  # by client id, in order of ids
    seed: int  # of the run
    participation: Participation
    network: Network = field(default_factory=Network)
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)  # what may be held of replies
    traced: Callable[[str, int], str] = lambda phase, t: ""
    """Given a phase and its round, returns the trace context of its instructions; empty: there is none."""
    meanwhile: Callable[[], None] = lambda: None
    """Called when the instructions of a request have been handed over, before its replies are awaited."""
    round: int = 0  # the round that is going on, or was the last
    shortfalls: Shortfalls = field(default_factory=Shortfalls)  # phases that wait for their quorum
    calls: list[Call] = field(default_factory=list)  # every instruction since the end of the last round
    _shortage: SmallCohortWarning = field(default_factory=SmallCohortWarning)

    # Who takes part

    @property
    def present(self) -> list[ClientRecord]:
        """Members that the run asks: not lost, and with a privacy budget left; in order of ids."""
        return [member for member in self.members.values() if member.takes_part]

    @property
    def spent(self) -> list[str]:
        """Ids of clients that have spent their privacy budgets."""
        return [member.name for member in self.members.values() if member.spent is not None]

    def exhausted(self) -> str:
        """Return why no client can be asked any more, if their privacy budgets are spent; empty if one can."""
        spent = self.spent
        if not spent or self.present:
            return ""
        return f"{len(spent)} of {len(self.members)} clients have spent their privacy budgets, and no other is left"

    @property
    def is_short(self) -> bool:
        """True if the next phase will have to wait: fewer clients are connected than the settings want replies."""
        if self.participation.on_shortage == "stop":
            return False
        present = self.present
        _, needed = self.participation.most_replies()
        return sum(member.connected for member in present) < min(needed, len(present))

    def check_lost(self) -> None:
        """Stop the run if a client is lost and the settings do not say to go on without it.

        Raises
        ------
        LostStateError
            A client is lost, and ``participation.on_lost_state`` is ``stop``.
        """
        if self.participation.on_lost_state == "continue":
            return
        for member in self.members.values():
            if member.lost is not None:
                raise LostStateError(
                    f"{member.lost}. The run stops, because the algorithm's state on the "
                    "clients would no longer add up. Where that cannot be cured, begin a new run; with "
                    "participation.on_lost_state: continue it would go on without such a client",
                    client=member.name,
                )

    def admit(self, late_joiner: ClientRecord) -> Cohort:
        """Take a client in, between two rounds; return the cohort of it alone.

        The run does not wait for it beyond a deadline: it may come again.
        """
        self._renew([*self.members.values(), late_joiner])
        return Cohort(self, (late_joiner.name,), waits=False)

    def dismiss(self, member: ClientRecord) -> None:
        """Take a client out again that :meth:`admit` took in, before it got a promise."""
        self._renew([other for other in self.members.values() if other is not member])

    def _renew(self, members: Iterable[ClientRecord]) -> None:
        # In place, as the coordinator refers to them, too.
        ordered = sorted(members, key=lambda member: member.name)
        self.members.clear()
        for index, member in enumerate(ordered):
            member.index = index
            self.members[member.name] = member

    # Cohorts

    def all(self) -> Cohort:
        """Return the cohort of all clients."""
        return Cohort(self, tuple(member.name for member in self.present))

    def sample(
        self, sampler: Sampler | None = None, *, weights: Mapping[str, float] | None = None, draw_name: str = "cohort"
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

        Raises
        ------
        RunStoppedError
            No client is left: all are lost, or have spent their privacy budgets.
        SettingsError
            The sampler wants more clients than the run has, or a weighted one has weights that are not finite, are
            negative or are all zero.
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
        absent = [i for i, member in enumerate(present) if not member.availability.drawn(self.round)]
        drawn = draw(sampler, np.array(values), self.round, random, lost=lost, absent=absent)
        self._shortage.tell(sampler, len(present), lost, self.round)
        return Cohort(self, tuple(present[i].name for i in drawn))

    # Questions and promises

    @contextmanager
    def in_round(self, t: int, *, draws_follow: bool = True) -> Iterator[list[Call]]:
        """Go through a round, to which all questions and promises of the block belong.

        Yields the instructions since the end of the round before, among them those of this round as they are made.
        When the block is over, the fleet knows which clients have answered in the round. If the block raises, it learns
        nothing, and the instructions stay for the next one.

        draws_follow: whether there may be a later round, whose draws depend on who has answered in this one.
        """
        self.round = t
        calls = self.calls
        yield calls
        self.calls = []
        if draws_follow:
            self._note_absences(calls)

    async def exchange(self, question: Question, collector: Collector, /) -> list[str]:
        """Put a question to its clients, and wait; return those whose replies count, in order of ids.

        Raises
        ------
        TooFewRepliesError
            See :meth:`fenchel.Cohort.ask`.
        LostStateError
            A client is lost, and ``participation.on_lost_state`` is ``stop``.
        SettingsError
            The replies that are held at once have more than ``network.in_flight_bytes``.
        RuntimeError
            Another question to one of the clients is still open.
        """
        phase, t, participation = question.phase, self.round, self.participation
        terms = participation.phases.get(phase) or PhaseTerms()
        sizes = question.sizes(client for client in question.clients if self.members[client].takes_part)
        room = self.memory_budget.room(f"round {t}, phase {phase!r}", sizes, collector.buffer_bytes)
        request = Request(
            phase=phase,
            t=t,
            collector=collector,
            check=partial(question.check, t),
            deadline=terms.deadline or question.deadline or participation.deadline,
            room=room,
            forms=question.forms,
            values=len(question.returns),
            patience=participation.patience,
            lacks=self._lacks if question.waits and participation.on_shortage == "wait" else None,
        )
        trace = self.traced(phase, t)
        sent = set()
        for client, body in bodies(question.clients, question.values):
            sent.add(body)
            member = self.members[client]
            if member.takes_part:
                call = member.post(phase, t, question.kind, body, request, traceparent=trace)
                request.expect(member, call)
                self.calls.append(call)
            else:
                collector.skip(client)
        self.meanwhile()
        needed, setting = quorum(participation, phase, terms.min_replies, question.min_replies)
        try:
            with room:
                answered = await request.finish(needed, setting)
        finally:
            self.shortfalls.over(request)
        for body in sent:
            body.detach()  # a client that did not answer in time may still be receiving it
        self.check_lost()
        return list(answered)

    def _lacks(self, request: Request, shortfall: Shortfall, tell: bool) -> None:
        """Note that a request waits for its quorum; ``tell``: it is time to say so in the log."""
        self.check_lost()
        self.shortfalls.note(request, shortfall, log=tell)

    def tell(self, phase: str, clients: Iterable[str], values: Mapping[str, Value | Each[Value]], /) -> None:
        """Give clients an instruction that they will carry out whatever happens.

        One that has ``network.promised_bytes`` before it already is lost.
        """
        trace = self.traced(phase, self.round)
        for client, body in bodies(clients, values):
            body.detach()  # it may be sent much later
            member = self.members[client]
            if member.owed_bytes >= self.network.promised_bytes:
                member.mark_lost(_too_far_behind(member, self.network.promised_bytes))
            if member.lost is None:
                self.calls.append(member.post(phase, self.round, pb.TELL, body, traceparent=trace))

    async def kept_promises(self, patience: float) -> None:
        """Wait until every client that is connected has kept its promises, or ``patience`` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(member.connected and member.outstanding for member in self.members.values()):
                    await asyncio.sleep(0.005)

    def _note_absences(self, calls: Sequence[Call]) -> None:
        """Note who has answered in this round, and who was asked and has not.

        A client that answered but could not do what it was asked is not away.
        """
        asked = [call for call in calls if call.kind == pb.ASK and call.round == self.round and not call.kept_out]
        answered = {call.client for call in asked if call.outcome in ("counted", "failed")}
        for client in answered:
            self.members[client].availability.answered_round()
        patience = self.participation.patience
        for client in {call.client for call in asked} - answered:
            availability = self.members[client].availability
            if availability.missed_round(self.round, patience) and has_places(self.participation.sampler):
                log.warning(
                    "client %s has not answered in %d rounds in a row that asked it (participation.patience): its "
                    "place in cohorts goes to others, as far as there are enough, until round %d, and then again for "
                    "ever longer, until it answers",
                    client,
                    patience,
                    availability.absence.back,
                )


def _too_far_behind(member: ClientRecord, limit: int) -> str:
    first = next(member.pending_tells())
    where = "is slow to follow" if member.connected else "has been away for long"
    return (
        f"it {where}: the promises since round {first.round}, {member.owed_bytes:,} bytes, are still to be kept, "
        f"and no more than {limit:,} are kept for one client (network.promised_bytes). Bring it back, or to a faster "
        "line, and go on with --resume RUN: it catches up"
    )
