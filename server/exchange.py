"""One phase on its way: who was asked, who has answered, and what is still awaited."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from common.errors import TooFewRepliesError
from common.expectation import Form
from common.payload import Value
from server.calls import Call

if TYPE_CHECKING:
    from server.member import Member

log = logging.getLogger("fenchel.server")

_NOT_FINITE = re.compile(r"not finite|a finite number")  # as common/expectation.py words it


class Collector(Protocol):
    """Takes the replies of an exchange as they arrive."""

    async def admit(self, client: str, size: int) -> None:
        """Return when there is room for a reply of ``size`` bytes."""
        ...

    def add(self, client: str, values: dict[str, Value]) -> None:
        """Take a reply that has been checked."""
        ...

    def skip(self, client: str) -> None:
        """Expect nothing more of a client: it failed, or its time is up."""
        ...


class Exchange:
    """Waits for the replies to one question.

    Parameters
    ----------
    phase, t
        What was asked, in which round.
    collector
        Where the replies go.
    check
        Raises ``PayloadError`` for a reply that is not what was asked for; told the client, its values,
        and whether they are known to be finite.
    deadline
        Seconds. A reply that has begun to arrive by then still counts: holding it back may have been
        the server's own doing.
    largest
        Told the client: how many bytes its reply can have at most, or ``None`` where that is open.
    forms
        In which each value of the replies is declared to come, by name.

    Attributes
    ----------
    started_ns, posted_ns, ended_ns
        By the performance counter: when it was made, when everybody had been asked, when it was over; 0: not yet.
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
    ) -> None:
        self.phase = phase
        self.round = t
        self.answered: list[str] = []
        self.failures: dict[str, str] = {}
        self._refused: dict[str, str] = {}  # those of clients that did answer
        self._collector = collector
        self.check = check
        self.largest = largest
        self.forms = forms or {}
        self._deadline = deadline
        self._waiting: dict[str, tuple[Member, Call]] = {}
        self._arriving: set[str] = set()
        self._changed = asyncio.Event()
        self._overdue = False
        self.started_ns = time.perf_counter_ns()
        self.posted_ns = 0
        self.ended_ns = 0

    def expect(self, member: Member, call: Call) -> None:
        """Wait for this client, too."""
        self._waiting[member.name] = member, call

    def is_open_for(self, call: Call) -> bool:
        """Whether a reply to this instruction would still count."""
        waiting = self._waiting.get(call.client)
        return waiting is not None and waiting[1] is call

    async def arriving(self, call: Call, size: int) -> None:
        """Note that a reply has begun to arrive; return when there is room for its body."""
        if self.is_open_for(call):
            self._arriving.add(call.client)
            await self._collector.admit(call.client, size)

    def interrupted(self, client: str) -> None:
        """Note that a reply stopped arriving (its stream broke)."""
        self._arriving.discard(client)
        if self._overdue and client in self._waiting:
            self._drop(client)

    def receive(self, call: Call, values: dict[str, Value]) -> None:
        """Count a reply that :attr:`check` has accepted."""
        member, _ = self._waiting.pop(call.client)
        self._arriving.discard(call.client)
        call.outcome = "counted"
        member.count(call)
        self.answered.append(call.client)
        self._collector.add(call.client, values)
        call.taken_ns = time.perf_counter_ns()
        self._changed.set()

    def fail(self, call: Call, reason: str) -> None:
        """Note that a client could not answer."""
        log.warning("round %d, phase %r: client %s failed: %s", self.round, self.phase, call.client, reason)
        self.failures[call.client] = reason
        waiting = self._waiting.get(call.client)
        if waiting is not None and waiting[0].lost is None:
            self._refused[call.client] = reason
        call.outcome = "failed"
        self._drop(call.client)

    def _drop(self, client: str) -> None:
        member, call = self._waiting.pop(client)
        self._arriving.discard(client)
        member.settle(call)
        self._collector.skip(client)
        self._changed.set()

    async def finish(self, min_replies: int) -> Sequence[str]:
        """Wait until everybody has answered or the deadline has passed; return who answered, in order.

        Raises
        ------
        TooFewRepliesError
            Fewer than ``min_replies`` did; 0 is content with nobody.
        """
        asked = len(self._waiting)
        self.posted_ns = time.perf_counter_ns()
        if not await self._quiet():
            self._overdue = True
            self._give_up(self._waiting.keys() - self._arriving)
            # What has begun to arrive gets as much time again, and no more: its sender may have stalled.
            if not await self._quiet():
                self._give_up(self._waiting.keys())
        self.ended_ns = time.perf_counter_ns()
        if len(self.answered) < min(min_replies, asked) or (min_replies and not self.answered):
            raise TooFewRepliesError(self._shortfall(asked, min_replies))
        return sorted(self.answered)

    def _shortfall(self, asked: int, min_replies: int) -> str:
        """Tell people why too few replies count: clients were away, or what they answered could not be used."""
        heard = len(self.answered) + len(self._refused)
        if self._refused and heard >= min(min_replies, asked):
            usable = f"only {len(self.answered)}" if self.answered else "none"
            problem = f"{heard} of {asked} clients answered, but {usable} of the answers could be used"
            remedy, failures = "continue with --resume when the cause is removed", self._refused
            if any(_NOT_FINITE.search(reason) for reason in failures.values()):
                remedy = (
                    "but values that are not finite say that the run has probably diverged: begin it again with a "
                    "smaller step_size"
                )
        else:
            problem = f"{len(self.answered)} of {asked} clients answered within {self._deadline:g} s"
            remedy, failures = "continue with --resume when the clients are back", self.failures
        reasons = "".join(f"\n  {client}: {reason}" for client, reason in sorted(failures.items())[:5])
        return (
            f"round {self.round}, phase {self.phase!r}: {problem}, and participation.min_replies is {min_replies}. "
            f"Everything up to the last checkpoint is saved; {remedy}.{reasons}"
        )

    async def _quiet(self) -> bool:
        """Wait until nobody is awaited any more; return whether that was so before the deadline."""
        try:
            async with asyncio.timeout(self._deadline):
                while self._waiting:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _give_up(self, clients: Iterable[str]) -> None:
        for client in sorted(clients):
            log.warning(
                "round %d, phase %r: client %s did not answer within %g s",
                self.round,
                self.phase,
                client,
                self._deadline,
            )
            member, call = self._waiting[client]
            member.overdue[call.sequence] = call
            self._drop(client)
