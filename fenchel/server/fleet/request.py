"""One phase on its way: who was asked, who has answered, and what is still awaited."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from fenchel.common.errors import TooFewRepliesError
from fenchel.common.untrusted_text import plain
from fenchel.common.wire.schema import Form
from fenchel.common.wire.values import Value
from fenchel.server.fleet.availability import ANY
from fenchel.server.fleet.calls import Call
from fenchel.server.fleet.client_record import ClientRecord
from fenchel.server.fleet.collectors import Collector, Gathered
from fenchel.server.fleet.quorum import Shortfall

log = logging.getLogger("fenchel.server")

_SAID_EVERY = 3600.0  # seconds, at least so often, that a phase lacks replies; or at each deadline, if that is longer


def _check_nothing(client: str, values: Mapping[str, Value], finite: bool) -> None:
    """Stand in for the check of an exchange that is over, as no reply to it counts."""


class Request:
    """Waits for the replies to one question.

    collector: where the replies go.
    check: raises ``PayloadError`` for a reply that is not what was asked for; told the client, its values, and
        whether they are known to be finite.
    deadline: seconds. A reply that has begun to arrive by then has as much time again, from when there is room for
        it: holding it back was the server's own doing.
    largest: told the client: how many bytes its reply can have at most, or ``None`` where that is open.
    forms: in which each value of the replies is declared to come, by name.
    values: how many values each reply has; ``None``: any number.
    patience: deadlines that a client may miss in a row before it is no longer waited for; ``None``: any number.
    lacks: told, when the deadline has passed without enough replies and they can still come, this exchange, how far
        it is, and whether it is time to tell people; then again whenever that changes. ``None``: nobody waits for
        them.
    started_ns, posted_ns, ended_ns: by the performance counter: when it was made, when everybody had been asked, when
        it was over; 0: not yet.
    """

    def __init__(
        self,
        phase: str,
        t: int,
        collector: Collector,
        check: Callable[[str, Mapping[str, Value], bool], None],
        deadline: float,
        largest: Callable[[str], int | None] = lambda client: None,
        forms: Mapping[str, Form] | None = None,
        *,
        values: int | None = None,
        patience: int | None = None,
        lacks: Callable[[Request, Shortfall, bool], None] | None = None,
    ) -> None:
        self.phase = phase
        self.round = t
        self.answered: list[str] = []
        self.failures: dict[str, str] = {}
        self._refused: dict[str, str] = {}  # those of clients that did answer
        self._diverged = False  # whether one of these says that numbers have grown beyond all bounds
        self._collector = collector
        self.check = check
        self.largest = largest
        self.forms = forms or {}
        self.values = values
        self._deadline = deadline
        self._waiting: dict[str, tuple[ClientRecord, Call]] = {}
        self._arriving: set[str] = set()
        self._room_since: dict[str, float] = {}  # also of a reply that broke off: its room is kept
        self._late_from = 0.0  # from this moment on, replies that are arriving have as much time again
        self._changed = asyncio.Event()
        self._patience = patience
        self._lacks = lacks
        self._needed = 0
        self._overlooked: set[str] = set()  # who is not waited for once all others have answered
        self._in_time = True
        self._closing = False
        self.started_ns = time.perf_counter_ns()
        self.posted_ns = 0
        self.ended_ns = 0

    def expect(self, member: ClientRecord, call: Call) -> None:
        """Wait for this client, too; if it has been late again and again, only until all others have answered."""
        self._waiting[member.name] = member, call
        availability = member.availability
        if availability.missed:
            if availability.returned(member.streams):
                log.info("client %s has come back: it is waited for again", member.name)
            if not availability.awaited(self.phase):
                self._overlooked.add(member.name)

    def is_open_for(self, call: Call) -> bool:
        """Whether a reply to this instruction would still count."""
        waiting = self._waiting.get(call.client)
        return waiting is not None and waiting[1] is call

    def excess(self, client: str, size: int) -> str:
        """Say why a reply of ``size`` bytes is too large; empty if it is not."""
        most = self.largest(client)
        if most is not None and size > most:
            return f"its reply has {size:,} bytes, and what was asked for has {most:,} at most"
        return self._collector.excess(client, size)

    async def arriving(self, call: Call, size: int) -> None:
        """Note that a reply has begun to arrive; return when there is room for its body."""
        if self.is_open_for(call):
            self._arriving.add(call.client)
            if self._overlooked or not self._in_time:
                self._changed.set()  # perhaps nobody else is awaited now
            await self._collector.admit(call.client, size)
        if self.is_open_for(call):
            self._room_since.setdefault(call.client, time.monotonic())
            if not self._in_time:
                self._changed.set()

    def interrupted(self, client: str) -> None:
        """Note that a reply stopped arriving (its stream broke)."""
        self._arriving.discard(client)
        if self._closing and client in self._waiting:
            self._drop(client)
        self._changed.set()

    def receive(self, call: Call, values: dict[str, Value]) -> None:
        """Count a reply that :attr:`check` has accepted."""
        member, _ = self._waiting.pop(call.client)
        self._arriving.discard(call.client)
        call.outcome = "counted"
        member.count(call)
        if member.availability.missed and self._in_time and member.availability.keep(self.phase):
            self._welcome(member)
        self.answered.append(call.client)
        self._collector.add(call.client, values)
        call.taken_ns = time.perf_counter_ns()
        # While others are awaited, and in time, one more reply changes nothing for who waits for all.
        if not self._waiting or self._overlooked or not self._in_time:
            self._changed.set()

    def _welcome(self, member: ClientRecord) -> None:
        others = ", ".join(map(repr, sorted(member.availability.overlooked)))
        log.info(
            "client %s has answered in time: it is waited for again%s",
            member.name,
            f", but for phase {others}" if others else "",
        )

    def fail(self, call: Call, reason: str, *, diverged: bool = False) -> None:
        """Note that a client could not answer, and whether that looks as if the run had diverged."""
        reason = plain(reason)
        log.warning(
            "round %d, phase %r: client %s failed: %s (this answer does not count)",
            self.round,
            self.phase,
            call.client,
            reason,
        )
        self.failures[call.client] = reason
        waiting = self._waiting.get(call.client)
        if waiting is not None and waiting[0].lost is None:
            self._refused[call.client] = reason
            self._diverged |= diverged
        call.outcome = "failed"
        self._drop(call.client)

    def _drop(self, client: str) -> None:
        member, call = self._waiting.pop(client)
        self._arriving.discard(client)
        member.settle(call)
        self._collector.skip(client)
        self._changed.set()

    async def finish(self, min_replies: int, setting: str = "participation.min_replies") -> Sequence[str]:
        """Wait until everybody has answered, or the deadline has passed and enough have; return who did, in order.

        min_replies: how many are enough, if so many were asked; 0 is content with nobody.
        """
        asked = len(self._waiting) + len(self.answered) + len(self.failures)
        self._needed = max(min(min_replies, asked), 1) if min_replies else 0
        self.posted_ns = time.perf_counter_ns()
        if not await self._quiet(self._deadline):
            self._in_time = False
            if self._lacks is not None:
                await self._quorum(partial(self._lacks, self), asked, setting)
            await self._close()
        self.ended_ns = time.perf_counter_ns()
        self._let_go()
        if len(self.answered) < self._needed:
            raise TooFewRepliesError(
                self._too_few(asked, setting),
                failures=self.failures,
                diverged=self._diverged,
                round=self.round,
                phase=self.phase,
            )
        return sorted(self.answered)

    def _let_go(self) -> None:
        """Release the arrays that were collected and expected: the record of the calls keeps this exchange for long."""
        assert not self._waiting, "a reply that still counts needs a collector and its check"
        self._collector, self.check = Gathered(), _check_nothing

    async def _quorum(self, lacks: Callable[[Shortfall, bool], None], asked: int, setting: str) -> None:
        """Wait, however long, until enough have answered, or no longer can."""
        self._late_from = time.monotonic()
        began = self._late_from - self._deadline
        # What has begun to arrive may be all that lacks: then nobody need hear of it yet.
        pause = self._deadline
        enough = len(self.answered) + len(self._arriving) >= self._needed
        tell_at = time.monotonic() + pause if enough else 0.0
        while len(self.answered) < self._needed <= len(self.answered) + len(self._waiting):
            now = time.monotonic()
            if self._collector.holds_back() and self._go_on_with_held(now):
                tell_at = max(tell_at, now + pause)  # what was held comes now
            shortfall = Shortfall(
                self.phase,
                self.round,
                answered=len(self.answered),
                asked=asked,
                needed=self._needed,
                setting=setting,
                missing=[member for member, _ in self._waiting.values()],
                seconds=now - began,
            )
            lacks(shortfall, now >= tell_at)
            if now >= tell_at:
                tell_at = now + pause
                pause = min(2 * pause, max(self._deadline, _SAID_EVERY))
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                ends = (self._ends(client) for client in self._arriving)
                async with asyncio.timeout(min([tell_at, *(end for end in ends if end > now)]) - now):
                    await self._changed.wait()

    def _go_on_with_held(self, now: float) -> bool:
        """Give up who keeps others from their turn, if these are enough for the quorum; return whether somebody was.

        At once those that are away, and those that have stalled when their time is over.
        """
        away = self._waiting.keys() - self._arriving
        stalled = {client for client in self._arriving if self._ends(client) <= now}
        for gone in (away | stalled, away):
            if len(self.answered) + len(self._waiting) - len(gone) >= self._needed:
                self._give_up(gone)
                return bool(gone)
        return False

    async def _close(self) -> None:
        """Wait for what has begun to arrive: each reply has a deadline from when there is room for it, and no more."""
        self._closing = True
        self._give_up(self._waiting.keys() - self._arriving)
        self._late_from = time.monotonic()
        while self._waiting:
            now, admitted = time.monotonic(), len(self._room_since)
            end = min(map(self._ends, self._waiting))
            nobody_has_room = end == math.inf
            if await self._quiet(self._deadline if nobody_has_room else max(end - now, 0.0)):
                return
            if nobody_has_room and len(self._room_since) == admitted:
                self._leave_without_room()
            now = time.monotonic()
            self._give_up([client for client in self._waiting if self._ends(client) <= now])

    def _ends(self, client: str) -> float:
        """Return when the time of a reply that is arriving is over; not before there is room for it."""
        return max(self._room_since.get(client, math.inf), self._late_from) + self._deadline

    def _leave_without_room(self) -> None:
        """Go on without replies that other phases have kept out all the time; their clients are not late."""
        for client in sorted(self._waiting):
            log.warning(
                "round %d, phase %r: for the reply of client %s there was no room within %g s, as other phases that "
                "began before hold it (network.in_flight_bytes)",
                self.round,
                self.phase,
                client,
                self._deadline,
            )
            self._waiting[client][1].kept_out = True
            self._leave(client)

    def _too_few(self, asked: int, setting: str) -> str:
        """Tell people why too few replies count: clients were away, or what they answered could not be used."""
        answered, failures = len(self.answered), self.failures
        heard = answered + len(self._refused)
        remedy = "continue with --resume when the cause is removed"
        if self._refused and heard >= self._needed:
            usable = f"only {answered}" if answered else "none"
            problem = f"{heard} of {asked} clients answered, but {usable} of the answers could be used"
            failures = self._refused
            if self._diverged:
                remedy = (
                    "but values that are not finite say that the run has probably diverged: begin it again with a "
                    "smaller step_size"
                )
        elif self._lacks is not None and failures:
            problem = f"{answered} of {asked} clients answered, and {len(failures)} no longer can"
        else:
            problem = f"{answered} of {asked} clients answered within {self._deadline:g} s"
            remedy = "continue with --resume when the clients are back"
        reasons = "".join(f"\n  {client}: {reason}" for client, reason in sorted(failures.items())[:5])
        return (
            f"{problem}, and it needs {self._needed} ({setting}). "
            f"Everything up to the last checkpoint is saved; {remedy}.{reasons}"
        )

    async def _quiet(self, seconds: float) -> bool:
        """Wait until nobody is awaited any more; return whether that was so within some time."""
        try:
            async with asyncio.timeout(seconds):
                while self._waiting:
                    if self._overlooked:
                        self._go_on_without_late()
                    if self._waiting:
                        self._changed.clear()
                        await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _go_on_without_late(self) -> None:
        """Expect nothing more of clients that are not waited for, if all others have answered, or begun to.

        Even where their replies have begun to arrive: they may be always late for want of bandwidth, and
        replies of others may be held back until it is their turn.
        """
        # Only where so few are left is it worth looking who they are.
        if len(self._waiting) - len(self._arriving) > len(self._overlooked):
            return
        enough = len(self.answered) >= self._needed
        if not enough and self._collector.holds_back():
            enough = len(self.answered) + len(self._arriving - self._overlooked) >= self._needed
        if enough and self._waiting.keys() - self._arriving <= self._overlooked:
            for client in sorted(self._waiting.keys() & self._overlooked):
                self._leave(client)

    def _give_up(self, clients: Iterable[str]) -> None:
        for client in sorted(clients):
            log.warning(
                "round %d, phase %r: client %s did not answer within %g s; what it answers later does not count",
                self.round,
                self.phase,
                client,
                self._deadline,
            )
            member = self._leave(client)
            news = member.availability.miss(self.phase, member.streams, self._patience, self._deadline)
            if news:
                log.warning(
                    "client %s has missed %d deadlines in a row (participation.patience). It is still asked, but %s no "
                    "longer waits for it, until it answers in time or comes back, and now and then to see",
                    client,
                    self._patience,
                    "the run" if ANY in news else f"phase {self.phase!r}",
                )

    def _leave(self, client: str) -> ClientRecord:
        """Expect nothing more of a client in this phase; what it still answers is late."""
        member, call = self._waiting[client]
        member.overdue[call.sequence] = call
        self._drop(client)
        return member
