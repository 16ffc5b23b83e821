"""State machine of a request, whose caller supplies the time: replies received and awaited, timeouts, and the end."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

SAID_EVERY = 3600.0
"""Longest pause in seconds between two warnings that a request lacks replies, unless the deadline is longer."""


class Awaited(Enum):
    """Stage of a request.

    Attributes
    ----------
    ALL
        Wait for all replies, until the deadline.
    QUORUM
        Wait for the quorum, beyond the deadline and without limit.
    ARRIVING
        Wait for the replies that have begun to arrive.
    NOTHING
        End of the request.
    """

    ALL = auto()
    QUORUM = auto()
    ARRIVING = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Decision:
    """Clients that the request stops waiting for, by reason, and the state of its quorum.

    Attributes
    ----------
    late
        Clients whose deadline has passed.
    suspected
        Suspected clients, dropped because the replies of all others have arrived or begun to arrive.
    kept_out
        Clients for whose replies the server had no memory.
    is_short
        True if the deadline has passed and the quorum is missing, but can still be reached.
    tell
        True if a warning about the missing quorum is due.
    """

    late: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    is_short: bool = False
    tell: bool = False


@dataclass(kw_only=True)
class RequestState:
    """Replies that a request awaits, and their timeouts.

    The caller reports events. It calls :meth:`decide` after each event if :attr:`needs_decision` is true, and at the
    time that :meth:`next_wakeup` returns. All times are seconds of the same clock.

    Attributes
    ----------
    deadline
        Seconds for a reply, from the time when all clients have been asked. A reply that has begun to arrive by the
        deadline gets a second deadline of the same length. The second deadline does not start before there is memory
        for the reply, because until then the server itself holds the reply back.
    waits
        True if the request waits for its quorum without limit.
    needed
        Quorum: number of replies required.
    awaited
        Current stage.
    answered
        Ids of the clients whose replies count, in the order of arrival.
    waiting
        Ids of the clients that are still awaited.
    """

    deadline: float
    waits: bool = False
    needed: int = 0
    awaited: Awaited = Awaited.ALL
    answered: list[str] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    _suspected: set[str] = field(default_factory=set)
    _arriving: set[str] = field(default_factory=set)
    # start of each reply's memory reservation, by client id; an interrupted reply keeps its reservation and its entry
    _room_since: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0
    _extended_from: float = 0.0  # start of the second deadline, for replies that are arriving
    _no_room_since: float | None = None  # start of the period in which no arriving reply has obtained memory
    _pause: float = 0.0  # time in seconds between two warnings
    _tell_at: float = 0.0

    # Events of the request

    def expect(self, client: str, *, is_suspected: bool = False) -> None:
        """Add a client to those awaited. A suspected client is awaited only until all others have answered."""
        self.waiting.add(client)
        if is_suspected:
            self._suspected.add(client)

    def begin(self, now: float, needed: int) -> None:
        """Start the deadline and set the quorum, after all clients were asked."""
        self._began, self.needed = now, needed

    def arriving(self, client: str) -> None:
        """Register a reply that has begun to arrive."""
        self._arriving.add(client)

    def admitted(self, client: str, now: float) -> None:
        """Register that there is memory for the rest of a reply."""
        self._room_since.setdefault(client, now)

    def interrupted(self, client: str) -> bool:
        """Register that a reply broke off. After the deadline, stop waiting for its client and return True."""
        self._arriving.discard(client)
        gone = self.awaited is Awaited.ARRIVING and client in self.waiting
        if gone:
            self._forget(client)
        return gone

    def received(self, client: str) -> None:
        """Register a reply that counts, and stop waiting for its client."""
        self._forget(client)
        self.answered.append(client)

    def failed(self, client: str) -> None:
        """Stop waiting for a client that has failed."""
        self._forget(client)

    # Decisions on the request

    @property
    def needs_decision(self) -> bool:
        """True if the latest event can change the decision.

        Before the deadline, only the last awaited reply can change it, unless the request awaits suspected clients.
        """
        return not self.waiting or self.awaited is not Awaited.ALL or bool(self._suspected)

    @property
    def is_enough(self) -> bool:
        """True if the quorum is reached."""
        return len(self.answered) >= self.needed

    def seconds(self, now: float) -> float:
        """Return the seconds since all clients were asked."""
        return now - self._began

    def next_wakeup(self, now: float) -> float:
        """Return the time at which the caller must decide again, unless an event requires a decision earlier."""
        if self.awaited is Awaited.ALL:
            return self._began + self.deadline
        ends = [end for end in map(self._end, self._arriving) if end > now]
        if self.awaited is Awaited.QUORUM:
            return min([self._tell_at, *ends])
        since = now if self._no_room_since is None else self._no_room_since
        return min(ends) if ends and min(ends) < math.inf else since + self.deadline

    def decide(self, now: float, *, holds_back: bool = False) -> Decision:
        """Advance to the stage that is due, stop waiting for clients whose time is over, and return these clients.

        Parameters
        ----------
        now
            Current time in seconds.
        holds_back
            True if replies wait for memory until others have been taken.
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
        """Enter the stage ``QUORUM``. The first warning is delayed if the arriving replies may complete the quorum."""
        self.awaited, self._extended_from, self._pause = Awaited.QUORUM, now, self.deadline
        enough = len(self.answered) + len(self._arriving) >= self.needed
        self._tell_at = now + self._pause if enough else now

    def _close(self, now: float) -> tuple[str, ...]:
        """Enter the stage ``ARRIVING``, stop waiting for clients without an arriving reply, and return their ids."""
        self.awaited, self._extended_from, self._no_room_since = Awaited.ARRIVING, now, None
        return self._remove(self.waiting - self._arriving)

    def _end(self, client: str) -> float:
        """Return the end of an arriving reply's second deadline; infinity while the reply has no memory."""
        return max(self._room_since.get(client, math.inf), self._extended_from) + self.deadline

    def _drop_suspected(self, holds_back: bool) -> tuple[str, ...]:
        """Stop waiting for suspected clients, if the others suffice and their replies have arrived or begun to arrive.

        Suspected clients whose replies have begun to arrive are dropped, too. They may be late because of low
        bandwidth, and replies of other clients may be held back until theirs are taken.

        Returns
        -------
        tuple[str, ...]
            Ids of the dropped clients, sorted.
        """
        # A cheap comparison of counts skips the set operations while the request still awaits other clients.
        if not self._suspected or len(self.waiting) - len(self._arriving) > len(self._suspected):
            return ()
        enough = self.is_enough
        if not enough and holds_back:
            enough = len(self.answered) + len(self._arriving - self._suspected) >= self.needed
        if not enough or not self.waiting - self._arriving <= self._suspected:
            return ()
        return self._remove(self.waiting & self._suspected)

    def _give_up_for_held(self, now: float) -> tuple[str, ...]:
        """Stop waiting for clients that hold back the replies of others, if the others are enough for the quorum.

        Clients whose replies have not begun to arrive are dropped at once, and clients with stalled replies after their
        second deadline. Return the ids of the dropped clients, sorted.
        """
        away = self.waiting - self._arriving
        stalled = {client for client in self._arriving if self._end(client) <= now}
        for gone in (away | stalled, away):
            if len(self.answered) + len(self.waiting) - len(gone) >= self.needed:
                if gone:  # held replies arrive now, so a warning would be premature
                    self._tell_at = max(self._tell_at, now + self._pause)
                return self._remove(gone)
        return ()

    def _is_time_to_tell(self, now: float) -> bool:
        """Return True if a warning is due, and schedule the next. Each pause is twice the one before, up to a limit."""
        if now < self._tell_at:
            return False
        self._tell_at = now + self._pause
        self._pause = min(2 * self._pause, max(self.deadline, SAID_EVERY))
        return True

    def _remove(self, clients: Collection[str]) -> tuple[str, ...]:
        """Stop waiting for clients, and return their ids, sorted."""
        gone = tuple(sorted(clients))
        for client in gone:
            self._forget(client)
        return gone

    def _forget(self, client: str) -> None:
        self.waiting.discard(client)
        self._arriving.discard(client)
        if client in self._room_since:
            self._no_room_since = None
