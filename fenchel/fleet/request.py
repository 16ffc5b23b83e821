"""Open request of one phase: the clients addressed, the replies received and the clients still awaited."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from fenchel.common.errors import TooFewRepliesError
from fenchel.common.untrusted_text import sanitize
from fenchel.common.wire.schema import Form
from fenchel.common.wire.values import Value
from fenchel.fleet.availability import ALL_PHASES
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.collectors import Collector, GatherCollector
from fenchel.fleet.memory_budget import Reservation
from fenchel.fleet.quorum import Shortfall
from fenchel.fleet.request_state import Awaited, Decision, RequestState

log = logging.getLogger("fenchel.server")


def _check_nothing(client: str, values: Mapping[str, Value], finite: bool) -> None:
    """Accept any values. This replaces the check of an ended request, for which no further reply counts."""


def take_all_due(collector: Collector, reservation: Reservation) -> None:
    """Let a collector process all replies that are due, and free the memory of each, even if the collector fails."""
    while (client := collector.due) is not None:
        try:
            collector.take_due()
        finally:
            reservation.release(client)


def _now() -> float:
    """Return the time of the event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


class Request:
    """A request to a cohort, and the wait for its replies.

    Parameters
    ----------
    phase
        Name of the phase.
    t
        Number of the round.
    collector
        Receiver of the replies that count.
    check
        Function of a client id, its values, and a bool that is true if the values are known to be finite. It raises
        ``PayloadError`` for a reply that does not match the schema.
    deadline
        Seconds for a reply, as in :class:`fenchel.fleet.request_state.RequestState`.
    reservation
        Memory reservation for the replies.
    forms
        Declared form of each value of a reply, by name.
    values
        Number of values in each reply; ``None``: any number.
    patience
        Number of consecutive missed deadlines after which phases no longer wait for a client; ``None``: no limit.
    on_shortfall
        Function that is called at the deadline if the quorum is missing and still possible, and again after each
        change. Its arguments are the request, its shortfall, and a bool that is true if a warning to the log is due.
        ``None``: the request does not wait beyond the deadline.

    Attributes
    ----------
    started_ns, posted_ns, ended_ns
        Stamps of the performance counter at the request's creation, after its last instruction was queued, and at its
        end; 0: not yet.
    """

    def __init__(
        self,
        *,
        phase: str,
        t: int,
        collector: Collector,
        check: Callable[[str, Mapping[str, Value], bool], None],
        deadline: float,
        reservation: Reservation,
        forms: Mapping[str, Form] | None = None,
        values: int | None = None,
        patience: int | None = None,
        on_shortfall: Callable[[Request, Shortfall, bool], None] | None = None,
    ) -> None:
        self.phase = phase
        self.round = t
        self.failures: dict[str, str] = {}
        self._refused: dict[str, str] = {}  # failures by clients that remain in the run, by client id
        self._diverged = False  # True if a client failed because of a value that is not finite
        self._collector = collector
        self.check = check
        self.reservation = reservation
        self.forms = forms or {}
        self.values = values
        self._patience = patience
        self._on_shortfall = on_shortfall
        self._asked: dict[str, tuple[ClientRecord, Call]] = {}
        self._state = RequestState(deadline=deadline, waits=on_shortfall is not None)
        self._error: Exception | None = None  # of the algorithm's functions
        self._awakened = asyncio.Event()
        self.started_ns = time.perf_counter_ns()
        self.posted_ns = 0
        self.ended_ns = 0

    def expect(self, member: ClientRecord, call: Call) -> None:
        """Add a client to those awaited. A suspected client is awaited only until all others have answered."""
        self._asked[member.name] = member, call
        availability = member.availability
        if availability.missed and availability.returned(member.streams):
            log.info("client %s reconnected; the server awaits its replies again", member.name)
        is_suspected = bool(availability.missed) and not availability.awaited(self.phase)
        self._state.expect(member.name, is_suspected=is_suspected)

    @property
    def answered(self) -> Sequence[str]:
        """Ids of the clients whose replies count, in the order of arrival."""
        return self._state.answered

    def is_open_for(self, call: Call) -> bool:
        """Return True if a reply to this instruction would still count."""
        return call.client in self._state.waiting and self._asked[call.client][1] is call

    async def arriving(self, call: Call, size: int) -> None:
        """Register a reply that has begun to arrive, and wait until there is memory for its body."""
        if self.is_open_for(call):
            self._state.arriving(call.client)
            self._wake()
            await self.reservation.acquire(call.client, size)
        if self.is_open_for(call):
            self._state.admitted(call.client, _now())
            self._wake()

    def interrupted(self, client: str) -> None:
        """Register that the client's stream broke while its reply arrived. After the deadline, stop waiting for it."""
        if self._state.interrupted(client):
            self._settle(client)
        self._wake()

    def receive(self, call: Call, values: dict[str, Value]) -> None:
        """Count a reply that :attr:`check` has accepted, and pass it to the collector."""
        member, _ = self._asked[call.client]
        self._state.received(call.client)
        call.end("counted")
        member.count(call)
        in_time = self._state.awaited is Awaited.ALL
        if member.availability.missed and in_time and member.availability.record_reply(self.phase):
            self._welcome(member)
        if self._error is None:
            self._collector.add(call.client, values)
            self._take_all_due()
        call.mark_taken()
        self._wake()

    def abort(self, error: Exception) -> None:
        """End the request with the first error of the algorithm's functions, which :meth:`finish` raises."""
        self._error = self._error or error
        self._awakened.set()

    def _take_all_due(self) -> None:
        """Process the replies that are due. An error must not end the stream of the client that came last."""
        try:
            take_all_due(self._collector, self.reservation)
        except Exception as error:
            self.abort(error)

    def _welcome(self, member: ClientRecord) -> None:
        suspected = sorted(member.availability.suspected)
        others = f"phase{'s' * (len(suspected) > 1)} {', '.join(map(repr, suspected))}"
        log.info(
            "client %s answered before the deadline; the server awaits its replies again%s",
            member.name,
            f", except in {others}" if suspected else "",
        )

    def fail(self, call: Call, reason: str, *, diverged: bool = False) -> None:
        """Log the failure of a client, and stop waiting for it. ``diverged`` marks values that are not finite."""
        reason = sanitize(reason)
        log.warning(
            "round %d, phase %r: client %s failed: %s (its reply does not count)",
            self.round,
            self.phase,
            call.client,
            reason,
        )
        self.failures[call.client] = reason
        if self.is_open_for(call) and self._asked[call.client][0].lost is None:
            self._refused[call.client] = reason
            self._diverged |= diverged
        call.end("failed")
        self._state.failed(call.client)
        self._settle(call.client)
        self._wake()

    def _wake(self) -> None:
        if self._state.needs_decision:
            self._awakened.set()

    def _settle(self, client: str) -> None:
        """Close the call of a client, and free the memory of its reply."""
        member, call = self._asked[client]
        member.resolve(call)
        self._collector.skip(client)
        self.reservation.release(client)
        if self._error is None:
            self._take_all_due()

    async def finish(self, min_replies: int, setting: str = "participation.min_replies") -> Sequence[str]:
        """Wait for the replies, and end the request.

        The wait ends when all clients have answered, or at the deadline. Replies that are arriving then get a second
        deadline. With ``lacks``, the request waits for its quorum beyond the deadline.

        Parameters
        ----------
        min_replies
            Quorum, capped at the number of clients addressed; 0: no reply is required.
        setting
            Origin of the quorum, for messages.

        Returns
        -------
        Sequence[str]
            Ids of the clients whose replies count, sorted.

        Raises
        ------
        TooFewRepliesError
            If fewer replies count than the quorum requires.
        Exception
            The error of a function that the algorithm has passed for the replies.
        """
        state, asked = self._state, len(self._asked)
        state.begin(_now(), max(min(min_replies, asked), 1) if min_replies else 0)
        self.posted_ns = time.perf_counter_ns()
        while self._error is None:
            now = _now()
            decision = state.decide(now, holds_back=self.reservation.holds_back)
            self._carry_out(decision)
            if decision.is_short and self._on_shortfall is not None:
                self._on_shortfall(self, self._shortfall(asked, setting, state.seconds(now)), decision.tell)
            if state.awaited is Awaited.NOTHING:
                break
            self._awakened.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(state.next_wakeup(now)):
                    await self._awakened.wait()
        self.ended_ns = time.perf_counter_ns()
        if self._error is not None:
            for client in sorted(state.waiting):
                state.failed(client)
                self._stop_waiting(client)
            self._let_go()
            raise self._error
        self._let_go()
        if not state.is_enough:
            raise TooFewRepliesError(
                self._too_few(asked, setting),
                failures=self.failures,
                diverged=self._diverged,
                round=self.round,
                phase=self.phase,
            )
        return sorted(state.answered)

    def _carry_out(self, decision: Decision) -> None:
        """Close the calls of a decision's clients, log late and kept-out clients, and record missed deadlines."""
        for client in decision.suspected:
            self._stop_waiting(client)
        for client in decision.late:
            log.warning(
                "round %d, phase %r: client %s did not answer within %g s; a later reply does not count",
                self.round,
                self.phase,
                client,
                self._state.deadline,
            )
            self._stop_waiting(client)
            self._record_miss(client)
        for client in decision.kept_out:
            log.warning(
                "round %d, phase %r: no memory for the reply of client %s became free within %g s, because replies of "
                "earlier phases occupy it; raise network.in_flight_bytes",
                self.round,
                self.phase,
                client,
                self._state.deadline,
            )
            self._asked[client][1].mark_kept_out()
            self._stop_waiting(client)

    def _stop_waiting(self, client: str) -> None:
        """Close the call of a client, and mark it as overdue, so that a later reply is recognised."""
        member, call = self._asked[client]
        member.mark_overdue(call)
        self._settle(client)

    def _record_miss(self, client: str) -> None:
        member, _ = self._asked[client]
        news = member.availability.record_miss(self.phase, member.streams, self._patience, self._state.deadline)
        if news:
            log.warning(
                "client %s has missed %d deadlines in a row (participation.patience). It still receives requests, "
                "but %s no longer waits for its replies until it answers in time or reconnects. It gets a trial "
                "from time to time",
                client,
                self._patience,
                "the run" if ALL_PHASES in news else f"phase {self.phase!r}",
            )

    def _shortfall(self, asked: int, setting: str, seconds: float) -> Shortfall:
        return Shortfall(
            self.phase,
            self.round,
            answered=len(self._state.answered),
            asked=asked,
            needed=self._state.needed,
            setting=setting,
            missing=[self._asked[client][0] for client in sorted(self._state.waiting)],
            seconds=seconds,
        )

    def _let_go(self) -> None:
        """Release the collected arrays, because the record of the calls refers to this request until the round ends."""
        assert not self._state.waiting, "a reply that still counts needs a collector and its check"
        self._asked.clear()
        self._collector, self.check = GatherCollector(), _check_nothing

    def _too_few(self, asked: int, setting: str) -> str:
        """Return the error message for a missing quorum: clients did not answer, or their replies were rejected."""
        answered, needed, failures = len(self._state.answered), self._state.needed, self.failures
        heard = answered + len(self._refused)
        remedy = "remove the cause, and continue with --resume"
        if self._refused and heard >= needed:
            usable = f"only {answered}" if answered else "none"
            problem = f"{heard} of {asked} clients answered, and {usable} of the replies could be used"
            failures = self._refused
            if self._diverged:
                remedy = (
                    "values that are not finite suggest that the run has diverged, so begin a new one with a smaller "
                    "step_size"
                )
        elif self._on_shortfall is not None and failures:
            problem = (
                f"{answered} of {asked} clients answered, and {len(failures)} of the others are lost or have spent "
                "their budgets"
            )
        else:
            problem = f"{answered} of {asked} clients answered within {self._state.deadline:g} s"
            remedy = "continue with --resume when the clients are available"
        reasons = "".join(f"\n  {client}: {reason}" for client, reason in sorted(failures.items())[:5])
        return (
            f"{problem}, but {needed} {'is' if needed == 1 else 'are'} required ({setting}). Everything up to the last "
            f"checkpoint is saved; {remedy}.{reasons}"
        )
