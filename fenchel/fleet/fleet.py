"""The fleet: records of the clients of a run, cohorts of clients, and the requests and promises to cohorts."""

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
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.collectors import Collector
from fenchel.fleet.memory_budget import MemoryBudget
from fenchel.fleet.question import Each, Question, bodies
from fenchel.fleet.quorum import Shortfall, Shortfalls, nobody_left, quorum
from fenchel.fleet.request import Request
from fenchel.fleet.sampling import SmallCohortWarning, draw, has_places
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")


@dataclass(kw_only=True)
class Fleet:
    """Clients of a run, from which an algorithm forms cohorts.

    The runtime creates the fleet, and a server half uses it as ``self.fleet``. Most algorithms need only
    :meth:`fenchel.Fleet.all` and :meth:`fenchel.Fleet.sample`, and send requests with the methods of
    :class:`fenchel.Cohort`.

    A client is lost if its state cannot be restored, or if the instructions that it has not confirmed reach
    ``network.promised_bytes``.

    Attributes
    ----------
    members : dict[str, ClientRecord]
        Client records by client id, in the order of ids. ``shard`` of a record describes the client's data, and is
        ``None`` before the client has joined.
    seed : int
        Seed of the run.
    participation : Participation
        Section ``participation`` of the settings.
    network : Network
        Section ``network`` of the settings.
    memory_budget : MemoryBudget
        Limit of the memory that replies take.
    traced : callable
        Function of a phase and its round that returns the W3C trace context of the phase's instructions. Default: an
        empty context.
    meanwhile : callable
        Function without arguments that is called after a request was sent and before its replies are awaited. Default:
        no effect.
    round : int
        Number of the current round, or of the last one between rounds.
    shortfalls : Shortfalls
        Phases that wait for their quorum.
    calls : list[Call]
        Calls of all instructions since the end of the previous round.
    """

    members: dict[str, ClientRecord]
    seed: int
    participation: Participation
    network: Network = field(default_factory=Network)
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)
    traced: Callable[[str, int], str] = lambda phase, t: ""
    meanwhile: Callable[[], None] = lambda: None
    round: int = 0
    shortfalls: Shortfalls = field(default_factory=Shortfalls)
    calls: list[Call] = field(default_factory=list)
    _shortage: SmallCohortWarning = field(default_factory=SmallCohortWarning)

    # Participating clients

    @property
    def present(self) -> list[ClientRecord]:
        """Records of the clients that take part, in the order of ids: neither lost nor without privacy budget."""
        return [member for member in self.members.values() if member.takes_part]

    @property
    def spent(self) -> list[str]:
        """Ids of the clients that have used up their privacy budgets."""
        return [member.name for member in self.members.values() if member.spent is not None]

    def exhausted(self) -> str:
        """Return the reason if no client is left because privacy budgets are used up.

        Returns
        -------
        str
            Reason. Empty if a client can still be asked, or if none has used up its budget.
        """
        spent = self.spent
        if not spent or self.present:
            return ""
        return f"{len(spent)} of {len(self.members)} clients have spent their privacy budgets, and no others remain"

    @property
    def is_short(self) -> bool:
        """True if a phase may have to wait, because fewer clients are connected than the largest quorum requires."""
        if self.participation.on_shortage == "stop":
            return False
        present = self.present
        _, needed = self.participation.most_replies()
        return sum(member.connected for member in present) < min(needed, len(present))

    def check_lost(self) -> None:
        """Raise an error if a client is lost, unless ``participation.on_lost_state`` is ``continue``.

        Raises
        ------
        LostStateError
            If a client is lost, and ``participation.on_lost_state`` is ``stop``.
        """
        if self.participation.on_lost_state == "continue":
            return
        for member in self.members.values():
            if member.lost is not None:
                raise LostStateError(
                    f"{member.lost}. The run stops, because the algorithm's state on the clients would become "
                    "inconsistent. Restore the client's state, or begin a new run; with "
                    "participation.on_lost_state: continue, a run continues without lost clients",
                    client=member.name,
                )

    def admit(self, late_joiner: ClientRecord) -> Cohort:
        """Add a late joiner to the fleet between two rounds.

        Parameters
        ----------
        late_joiner : ClientRecord
            Record of the client.

        Returns
        -------
        Cohort
            Cohort of this client alone. Requests to it do not wait beyond their deadline, as it can join again.
        """
        self._renew([*self.members.values(), late_joiner])
        return Cohort(self, (late_joiner.name,), waits=False)

    def dismiss(self, member: ClientRecord) -> None:
        """Remove a late joiner that was admitted and has not received a promise.

        Parameters
        ----------
        member : ClientRecord
            Record of the client.
        """
        self._renew([other for other in self.members.values() if other is not member])

    def _renew(self, members: Iterable[ClientRecord]) -> None:
        # Change the dictionary in place, because the coordinator refers to the same object.
        ordered = sorted(members, key=lambda member: member.name)
        self.members.clear()
        self.members.update((member.name, member) for member in ordered)

    # Cohorts

    def all(self) -> Cohort:
        """Return the cohort of all clients that take part.

        Returns
        -------
        Cohort
            Clients that are neither lost nor without privacy budget.
        """
        return Cohort(self, tuple(member.name for member in self.present))

    def sample(
        self, sampler: Sampler | None = None, *, weights: Mapping[str, float] | None = None, draw_name: str = "cohort"
    ) -> Cohort:
        """Draw a cohort for this round.

        The draw depends on the run's seed, the round, ``draw_name``, and the clients that are lost or have been absent
        for long.

        Parameters
        ----------
        sampler : Sampler, optional
            Sampler. Default: ``participation.sampler``.
        weights : Mapping[str, float], optional
            Non-negative weight of each client, for a weighted sampler. Default: the client's number of samples.
        draw_name : str, default "cohort"
            Name that distinguishes several draws of one round.

        Returns
        -------
        Cohort
            Clients drawn. With replacement, a client can be drawn more than once.

        Raises
        ------
        RunStoppedError
            If no client is left: all are lost, or have used up their privacy budgets.
        SettingsError
            If the sampler requires more clients than the run has. Also raised if a weight of a weighted sampler is
            infinite, NaN or negative, or if all its weights are zero.
        KeyError
            If ``weights`` has no weight for a client.
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

    # Requests and one-way instructions

    @contextmanager
    def in_round(self, t: int, *, draws_follow: bool = True) -> Iterator[list[Call]]:
        """Assign all requests and promises of a ``with`` block to a round.

        At the end of the block, clients that missed the round are recorded. An exception in the block leaves these
        records unchanged, and the instructions remain for the next block.

        Parameters
        ----------
        t : int
            Number of the round, from 1.
        draws_follow : bool, default True
            True if later rounds may draw cohorts, whose draws depend on the clients that missed this round. Otherwise
            no absences are recorded.

        Yields
        ------
        list[Call]
            Instructions since the end of the previous round, extended by those of this round.
        """
        self.round = t
        calls = self.calls
        yield calls
        self.calls = []
        if draws_follow:
            self._note_absences(calls)

    async def exchange(self, question: Question, collector: Collector, /) -> list[str]:
        """Send a request to its clients and wait for the replies. Algorithms call :meth:`fenchel.Cohort.ask` instead.

        Parameters
        ----------
        question : Question
            Request: phase, clients, values and schema of the replies.
        collector : Collector
            Receiver of the replies.

        Returns
        -------
        list[str]
            Ids of the clients whose replies count, sorted.

        Raises
        ------
        TooFewRepliesError, LostStateError, SettingsError, PayloadError, KeyError, RuntimeError
            See :meth:`fenchel.Cohort.ask`.
        """
        phase, t, participation = question.phase, self.round, self.participation
        terms = participation.phases.get(phase) or PhaseTerms()
        sizes = question.sizes(client for client in question.clients if self.members[client].takes_part)
        reservation = self.memory_budget.reserve(f"round {t}, phase {phase!r}", sizes, collector.buffer_bytes)
        request = Request(
            phase=phase,
            t=t,
            collector=collector,
            check=partial(question.check, t),
            deadline=terms.deadline or question.deadline or participation.deadline,
            reservation=reservation,
            forms=question.forms,
            values=len(question.returns),
            patience=participation.patience,
            on_shortfall=self._on_shortfall if question.waits and participation.on_shortage == "wait" else None,
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
            with reservation:
                answered = await request.finish(needed, setting)
        finally:
            self.shortfalls.over(request)
        for body in sent:
            body.detach()  # encode all frames now, because a late client may still be receiving the body
        self.check_lost()
        return list(answered)

    def _on_shortfall(self, request: Request, shortfall: Shortfall, tell: bool) -> None:
        """Record that a request waits for its quorum. Raise ``LostStateError`` if a lost client stops the run."""
        self.check_lost()
        self.shortfalls.note(request, shortfall, log=tell)

    def tell(self, phase: str, clients: Iterable[str], values: Mapping[str, Value | Each[Value]], /) -> None:
        """Queue an instruction for clients. Algorithms call :meth:`fenchel.Cohort.tell` instead.

        Parameters
        ----------
        phase : str
            Phase, named as by :func:`fenchel.answers`.
        clients : Iterable[str]
            Ids of the clients.
        values : Mapping[str, Value or Each]
            Values to send.

        Raises
        ------
        PayloadError, KeyError, RuntimeError
            See :meth:`fenchel.Cohort.tell`.
        """
        trace = self.traced(phase, self.round)
        for client, body in bodies(clients, values):
            body.detach()  # encode all frames now, because sending may happen much later
            member = self.members[client]
            if member.owed_bytes >= self.network.promised_bytes:
                member.mark_lost(_too_far_behind(member, self.network.promised_bytes))
            if member.lost is None:
                self.calls.append(member.post(phase, self.round, pb.TELL, body, traceparent=trace))

    async def kept_promises(self, patience: float) -> None:
        """Wait until all connected clients have confirmed their instructions, or the time has passed.

        Parameters
        ----------
        patience : float
            Longest wait, in seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(member.connected and member.outstanding for member in self.members.values()):
                    await asyncio.sleep(0.005)

    def _note_absences(self, calls: Sequence[Call]) -> None:
        """Record which of the clients with a request in this round answered, and which did not.

        A client that answered with a failure is not absent.
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
                    "client %s did not answer its requests in %d rounds in a row (participation.patience). Other "
                    "clients take its place in cohorts until round %d, if there are enough. Each further "
                    "exclusion is longer, until the client answers",
                    client,
                    patience,
                    availability.absence.back,
                )


def _too_far_behind(member: ClientRecord, limit: int) -> str:
    first = next(member.pending_tells())
    where = "reads its stream slowly" if member.connected else "was disconnected"
    return (
        f"the promises that it has not confirmed since round {first.round} have {member.owed_bytes:,} bytes, above "
        f"network.promised_bytes ({limit:,}), because the client {where}. Reconnect the client, or give it a "
        "faster link, and continue with --resume RUN"
    )
