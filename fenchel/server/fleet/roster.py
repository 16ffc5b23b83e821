"""The clients of a run: who is lost, spent or away, what they were told in this round, and what the run waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fenchel.common.errors import LostStateError
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import Network
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.fleet.calls import Call
from fenchel.server.fleet.client_record import ClientRecord
from fenchel.server.fleet.memory_budget import MemoryBudget
from fenchel.server.fleet.quorum import Shortfall, Shortfalls
from fenchel.server.fleet.request import Request
from fenchel.server.fleet.sampling import has_places

log = logging.getLogger("fenchel.server")


@dataclass(kw_only=True)
class Roster:
    """The clients of a run, and what goes on with them."""

    members: dict[str, ClientRecord]  # by client id, in order of ids
    seed: int  # of the run
    participation: Participation
    network: Network = field(default_factory=Network)
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)  # what may be held of replies
    traced: Callable[[str, int], str] = lambda phase, t: ""
    """Given a phase and its round, returns the trace context that goes with its instructions; empty: nobody traces."""
    meanwhile: Callable[[], None] = lambda: None
    """Called when the instructions of a request have been handed over, before its replies are awaited."""
    round: int = 0  # the round that is going on
    calls: list[Call] = field(default_factory=list)  # every instruction of this round, for the record
    shortfalls: Shortfalls = field(default_factory=Shortfalls)  # phases that wait for their quorum

    @property
    def present(self) -> list[ClientRecord]:
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

    def check_lost(self) -> None:
        """Stop the run if a client is lost and the settings do not say to go on without it."""
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

    def note_absences(self, calls: Iterable[Call]) -> None:
        """Note who has answered in this round, and who was asked and has not, as its record says.

        Who answered but could not do what it was asked is not away.
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

    async def finish(self, request: Request, min_replies: int, setting: str) -> Sequence[str]:
        """Wait for the replies of a request; parameters and errors as for :meth:`Request.finish`."""
        try:
            return await request.finish(min_replies, setting)
        finally:
            self.shortfalls.over(request)

    def lacks(self, request: Request, shortfall: Shortfall, tell: bool) -> None:
        """Note that a request waits for its quorum; ``tell``: it is time to say so in the log."""
        self.check_lost()
        self.shortfalls.note(request, shortfall, log=tell)
