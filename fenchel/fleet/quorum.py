"""Quorums of phases, and the reports of a run that waits for a quorum or has no client left."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass

from fenchel.common.errors import RunStoppedError
from fenchel.common.settings.participation import Participation
from fenchel.fleet.client_record import ClientRecord

log = logging.getLogger("fenchel.server")

_NAMED = 5  # largest number of clients named in a warning


@dataclass(frozen=True)
class Shortfall:
    """State of a phase whose quorum is missing.

    Attributes
    ----------
    phase, round
        Name of the phase and number of its round.
    answered, asked, needed
        Numbers of clients whose replies count, that were asked, and that are required (the quorum).
    setting
        Origin of the quorum: a settings key, or the algorithm.
    missing
        Records of the clients that can still answer.
    seconds
        Seconds since the clients were asked.
    """

    phase: str
    round: int
    answered: int
    asked: int
    needed: int
    setting: str
    missing: Sequence[ClientRecord]
    seconds: float

    @property
    def status(self) -> str:
        """One line that names the phase, the missing number of replies and the clients that can still answer."""
        return (
            f"round {self.round}, phase {self.phase!r}: waiting for {self.needed - self.answered} more, of "
            f"{self._missing()}"
        )

    def warning(self, saved: int | None) -> str:
        """Return the warning for the log: missing replies, consequence for the run, and the way to stop the run.

        Parameters
        ----------
        saved
            Number of the round of the last checkpoint; ``None``: there is none yet.
        """
        stop = "Ctrl-C or SIGTERM stops the run, and nothing is saved yet"
        if saved is not None:
            state = f"Everything up to round {saved}" if saved else "The state before round 1"
            stop = f"{state} is saved; Ctrl-C or SIGTERM stops the run, and --resume continues it"
        return (
            f"round {self.round}, phase {self.phase!r}: {self.answered} of {self.asked} clients answered within "
            f"{_seconds(self.seconds)}, but {self.needed} {'is' if self.needed == 1 else 'are'} required "
            f"({self.setting}). The run waits for {self.needed - self.answered} more, of {self._missing()}, and then "
            f"continues at once. {stop}"
        )

    def _missing(self) -> str:
        first = heapq.nsmallest(_NAMED, self.missing, key=lambda member: member.name)
        named = ", ".join(f"{each.name} ({'connected' if each.connected else 'away'})" for each in first)
        others = len(self.missing) - len(first)
        return named + (f" and {others} more" if others else "")


class Shortfalls:
    """Register of the phases that wait for their quorum beyond the deadline."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Shortfall] = {}
        self._due: set[Hashable] = set()  # requests for which a warning is due
        self._changed = asyncio.Event()

    def note(self, request: Hashable, shortfall: Shortfall, *, log: bool) -> None:
        """Register the shortfall of a request. With ``log``, :meth:`watch` logs a warning after the run is saved."""
        self._open[request] = shortfall
        if log:
            self._due.add(request)
        self._changed.set()

    def over(self, request: Hashable) -> None:
        """Remove a request that has ended."""
        if self._open.pop(request, None) is not None:
            self._changed.set()

    async def watch(self, waits: Callable[[str], None], secure: Callable[[], Awaitable[int | None]]) -> None:
        """Report shortfalls until cancelled.

        Parameters
        ----------
        waits
            Function that is called after each change with the reason for the wait, in one line; empty when the run goes
            on.
        secure
            Function that saves the run before the warning is logged, and returns the number of the last round saved.
        """
        logging_now: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                waits(self._status())
                for request in self._due:
                    task = asyncio.create_task(self._log(request, secure))
                    logging_now.add(task)
                    task.add_done_callback(logging_now.discard)
                self._due.clear()
        finally:
            if self._changed.is_set():
                waits(self._status())

    def _status(self) -> str:
        return "; ".join(shortfall.status for shortfall in self._open.values())

    async def _log(self, request: Hashable, secure: Callable[[], Awaitable[int | None]]) -> None:
        """Save the run, and log the warning if the request still waits."""
        saved = await secure()
        shortfall = self._open.get(request)
        if shortfall is not None:
            log.warning("%s", shortfall.warning(saved))


def _seconds(duration: float) -> str:
    return f"{duration:.0f} s" if duration >= 10 else f"{duration:.2g} s"


def nobody_left(t: int, clients: int, exhausted: str = "") -> RunStoppedError:
    """Return the error that stops a run without clients.

    Parameters
    ----------
    t
        Number of the round.
    clients
        Number of clients that the run had.
    exhausted
        Sentence with the number of clients without privacy budget; empty if all clients are lost.
    """
    if exhausted:
        return RunStoppedError(
            f"{exhausted}. Everything up to the last checkpoint is saved. A longer run needs more noise from its "
            "first round, or client policies that allow more",
            round=t,
        )
    return RunStoppedError(
        f"all {clients} clients are lost (the log has the reasons), so the run stops. Restore their --state "
        "folders and continue with --resume RUN --previous, as the last checkpoint may mark clients as lost; or "
        "begin a new run",
        round=t,
    )


def quorum(participation: Participation, phase: str, wanted: int | None, needed: int | None) -> tuple[int, str]:
    """Return the quorum of a phase, and its origin for messages.

    The algorithm's quorum takes precedence over ``participation.min_replies``, and the phase's settings can only raise
    it.

    Parameters
    ----------
    participation
        Section ``participation`` of the settings.
    phase
        Name of the phase.
    wanted
        Quorum that the settings give for this phase; ``None``: none.
    needed
        Quorum that the algorithm gives; ``None``: none.
    """
    key = f"participation.phases.{phase}.min_replies"
    if needed is None:
        return (participation.min_replies, "participation.min_replies") if wanted is None else (wanted, key)
    if wanted is not None and wanted > needed:
        return wanted, key
    return needed, f"because phase {phase!r} requires them"
