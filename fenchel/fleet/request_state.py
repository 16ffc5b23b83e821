"""A request as a state machine without a clock: what has come, for whom it waits, until when, and when it is over."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

SAID_EVERY = 3600.0
"""Seconds, at least so often, that a request lacks replies; or at each deadline, if that is longer."""


class Awaited(Enum):
    """A stage of a request, by what it waits for.

    Attributes
    ----------
    ALL
        Until the deadline.
    QUORUM
        Beyond it, however long.
    ARRIVING
        Replies that have begun to arrive.
    """

    ALL = auto()
    QUORUM = auto()
    ARRIVING = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Decision:
    """The clients of which nothing more is expected, by reason, and how people hear of the rest.

    Attributes
    ----------
    late
        Their time is over.
    suspected
        Not waited for by themselves, and all others have answered or begun to.
    kept_out
        No room came for their replies, which is not their doing.
    is_short
        The quorum is missing, and can still come.
    tell
        ... and it is time to tell people.
    """

    late: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    is_short: bool = False
    tell: bool = False


@dataclass(kw_only=True)
class RequestState:
    """The replies that a request waits for, and how long.

    After each event :meth:`decide` is due if :attr:`needs_decision`, and without one at :meth:`next_wakeup`. Times are
    seconds of any one clock.

    Attributes
    ----------
    deadline
        Seconds for a reply, from when all were asked. One that has begun to arrive by then has as much time again, from
        when there is room for it: holding it back was the server's own doing.
    waits
        For its quorum, however long it takes.
    needed
        Replies.
    answered
        In the order in which they came.
    """

    deadline: float
    waits: bool = False
    needed: int = 0
    awaited: Awaited = Awaited.ALL
    answered: list[str] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    _suspected: set[str] = field(default_factory=set)
    _arriving: set[str] = field(default_factory=set)
    _room_since: dict[str, float] = field(default_factory=dict)  # also of a reply that broke off: its room is kept
    _began: float = 0.0
    _extended_from: float = 0.0  # from then on, replies that are arriving have as much time again
    _no_room_since: float | None = None  # of replies that are arriving, since when none can have had room
    _pause: float = 0.0  # between two words to people
    _tell_at: float = 0.0

    # Events

    def expect(self, client: str, *, is_suspected: bool = False) -> None:
        """Wait for a client, too; if it is suspected, only until all others have answered."""
        self.waiting.add(client)
        if is_suspected:
            self._suspected.add(client)

    def begin(self, now: float, needed: int) -> None:
        """Let the time run: all have been asked."""
        self._began, self.needed = now, needed

    def arriving(self, client: str) -> None:
        """Note that a reply has begun to arrive."""
        self._arriving.add(client)

    def admitted(self, client: str, now: float) -> None:
        """Note that there is room for the rest of a reply."""
        self._room_since.setdefault(client, now)

    def interrupted(self, client: str) -> bool:
        """Note that a reply stopped arriving; return whether nothing more is expected of it, as time is over."""
        self._arriving.discard(client)
        gone = self.awaited is Awaited.ARRIVING and client in self.waiting
        if gone:
            self._forget(client)
        return gone

    def received(self, client: str) -> None:
        """Note that a reply is here, and counts."""
        self._forget(client)
        self.answered.append(client)

    def failed(self, client: str) -> None:
        """Note that a client could not answer."""
        self._forget(client)

    # Decisions

    @property
    def needs_decision(self) -> bool:
        """True if what happens now can change what is to be done: in time, only the last reply does."""
        return not self.waiting or self.awaited is not Awaited.ALL or bool(self._suspected)

    @property
    def is_enough(self) -> bool:
        """True if the quorum has answered."""
        return len(self.answered) >= self.needed

    def seconds(self, now: float) -> float:
        """Return for how long it has waited."""
        return now - self._began

    def next_wakeup(self, now: float) -> float:
        """Return when to decide again, if nothing happens before."""
        if self.awaited is Awaited.ALL:
            return self._began + self.deadline
        ends = [end for end in map(self._end, self._arriving) if end > now]
        if self.awaited is Awaited.QUORUM:
            return min([self._tell_at, *ends])
        since = now if self._no_room_since is None else self._no_room_since
        return min(ends) if ends and min(ends) < math.inf else since + self.deadline

    def decide(self, now: float, *, holds_back: bool = False) -> Decision:
        """Go on as far as can be; return what is to be done.

        Parameters
        ----------
        holds_back
            Whether replies wait for room until others have been taken.
        """
        suspected = () if self.awaited is Awaited.QUORUM else self._drop_suspected(holds_back)
        late: tuple[str, ...] = ()
        kept_out: tuple[str, ...] = ()
        if self.awaited is Awaited.ALL and self.waiting and now >= self._began + self.deadline:
            if self.waits:
                self._wait_for_quorum(now)
            else:
                late = self._close(now)
        if self.awaited is Awaited.QUORUM:
            if not self.is_enough and len(self.answered) + len(self.waiting) >= self.needed:
                held = self._give_up_for_held(now) if holds_back else ()
                return Decision(late=held, suspected=suspected, is_short=True, tell=self._is_time_to_tell(now))
            late = self._close(now)
        if self.awaited is Awaited.ARRIVING:
            late += self._remove([client for client in self.waiting if self._end(client) <= now])
            if self._no_room_since is None:
                self._no_room_since = now
            has_no_room = all(self._end(client) == math.inf for client in self.waiting)
            if has_no_room and now >= self._no_room_since + self.deadline:
                kept_out = self._remove(self.waiting)
        if not self.waiting:
            self.awaited = Awaited.NOTHING
        return Decision(late=late, suspected=suspected, kept_out=kept_out)

    def _wait_for_quorum(self, now: float) -> None:
        """Go on waiting; where what has begun to arrive may be all that lacks, people need not hear of it yet."""
        self.awaited, self._extended_from, self._pause = Awaited.QUORUM, now, self.deadline
        enough = len(self.answered) + len(self._arriving) >= self.needed
        self._tell_at = now + self._pause if enough else now

    def _close(self, now: float) -> tuple[str, ...]:
        """Wait for what has begun to arrive, and nothing else."""
        self.awaited, self._extended_from, self._no_room_since = Awaited.ARRIVING, now, None
        return self._remove(self.waiting - self._arriving)

    def _end(self, client: str) -> float:
        """Return when the time of a reply that is arriving is over; not before there is room for it."""
        return max(self._room_since.get(client, math.inf), self._extended_from) + self.deadline

    def _drop_suspected(self, holds_back: bool) -> tuple[str, ...]:
        """Expect nothing more of suspected clients, if all others have answered, or begun to.

        Even where their replies have begun to arrive: they may be late again and again for want of bandwidth, and
        replies of others may be held back until it is their turn.
        """
        # Only where so few are left is it worth looking who they are.
        if not self._suspected or len(self.waiting) - len(self._arriving) > len(self._suspected):
            return ()
        enough = self.is_enough
        if not enough and holds_back:
            enough = len(self.answered) + len(self._arriving - self._suspected) >= self.needed
        if not enough or not self.waiting - self._arriving <= self._suspected:
            return ()
        return self._remove(self.waiting & self._suspected)

    def _give_up_for_held(self, now: float) -> tuple[str, ...]:
        """Give up clients that keep others from their turn, if these are enough for the quorum.

        At once those that are away, and those that have stalled when their time is over.
        """
        away = self.waiting - self._arriving
        stalled = {client for client in self._arriving if self._end(client) <= now}
        for gone in (away | stalled, away):
            if len(self.answered) + len(self.waiting) - len(gone) >= self.needed:
                if gone:  # what was held comes now
                    self._tell_at = max(self._tell_at, now + self._pause)
                return self._remove(gone)
        return ()

    def _is_time_to_tell(self, now: float) -> bool:
        """Return whether people should hear now what is missing; the next time twice as long after this one."""
        if now < self._tell_at:
            return False
        self._tell_at = now + self._pause
        self._pause = min(2 * self._pause, max(self.deadline, SAID_EVERY))
        return True

    def _remove(self, clients: Collection[str]) -> tuple[str, ...]:
        """Expect nothing more of clients; return them in order."""
        gone = tuple(sorted(clients))
        for client in gone:
            self._forget(client)
        return gone

    def _forget(self, client: str) -> None:
        self.waiting.discard(client)
        self._arriving.discard(client)
        if client in self._room_since:
            self._no_room_since = None
