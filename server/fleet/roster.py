"""The clients of a run: who is lost, spent or away, what they were told in this round, and what the run waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fenchel.common.errors import LostStateError
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import Network
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.fleet.attendance import Attendance
from fenchel.server.fleet.calls import Call
from fenchel.server.fleet.client_record import ClientRecord
from fenchel.server.fleet.memory_budget import MemoryBudget
from fenchel.server.fleet.quorum import Shortfall
from fenchel.server.fleet.request import Request
from fenchel.server.fleet.sampling import has_places

log = logging.getLogger("fenchel.server")


async def _nothing_to_save() -> None:
    """Stand in for who saves the run, where nobody does."""


@dataclass
class Roster:
    """The clients of a run, and what goes on with them.

    in_flight: what may be held of replies.
    """

    members: dict[str, ClientRecord]  # by client id, in order of ids
    seed: int  # seed, participation, reply_buffer_bytes, promised_bytes: from the settings
    participation: Participation
    reply_buffer_bytes: int
    promised_bytes: int = Network().promised_bytes
    round: int = 0  # the round that is going on
    calls: list[Call] = field(default_factory=list)  # every instruction of this round, for the record
    traced: Callable[[str, int], str] = lambda phase, t: ""
    """Given a phase and its round, returns the trace context that goes with its instructions; empty: nobody traces."""
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)
    waits: Callable[[str], None] = lambda words: None
    """Told in a few words what the run waits for beyond a deadline; empty: nothing any more."""
    saved: int | None = None  # the round after which the last checkpoint was written; ``None``: there is none yet
    secure: Callable[[], Awaitable[None]] = _nothing_to_save
    """Called when the run waits beyond a deadline: saves it as it was between the last two rounds."""
    meanwhile: Callable[[], None] = lambda: None
    """Called when the instructions of an exchange have been handed over, before its replies are awaited."""
    admitting: bool = False
    """Whether a newcomer is being taken in. The run does not wait for one beyond a deadline: it may come again."""
    _lacking: dict[Request, Shortfall] = field(default_factory=dict)
    _telling: set[asyncio.Task[None]] = field(default_factory=set)

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

    def note_attendance(self, calls: Iterable[Call]) -> None:
        """Note who has answered in this round, and who was asked and has not, as its record says.

        Who answered but could not do what it was asked is not away.
        """
        asked = [call for call in calls if call.kind == pb.ASK and call.round == self.round and not call.kept_out]
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

    async def finish(self, request: Request, min_replies: int, setting: str) -> Sequence[str]:
        """Wait for the replies of an exchange, and say so where that takes longer than its deadline.

        Parameters and errors as for :meth:`Request.finish`, and :meth:`check_lost`.
        """
        try:
            return await request.finish(min_replies, setting)
        finally:
            if self._lacking.pop(request, None) is not None:
                self._say_what_lacks()

    def lacks(self, request: Request, shortfall: Shortfall, tell: bool) -> None:
        """Note that an exchange waits for its quorum; ``tell``: it is time to say so in the log."""
        self.check_lost()
        self._lacking[request] = shortfall
        if tell:
            telling = asyncio.create_task(self._save_and_tell(request))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
        self._say_what_lacks()

    async def _save_and_tell(self, request: Request) -> None:
        """Say in the log that the run waits, and what is saved; nothing, if it goes on meanwhile."""
        await self.secure()
        shortfall = self._lacking.get(request)
        if shortfall is not None:
            log.warning("%s", shortfall.warning(self.saved))

    def _say_what_lacks(self) -> None:
        self.waits("; ".join(shortfall.status for shortfall in self._lacking.values()))
