"""How many clients a phase needs, and what is said when they are too few: it waits, or nobody is left."""

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

_NAMED = 5  # clients


@dataclass(frozen=True)
class Shortfall:
    """How far a phase is from its quorum.

    Attributes
    ----------
    phase, round
        What was asked, in which round.
    answered, asked, needed
        Numbers of clients.
    setting
        Which key, or who, says how many are needed.
    missing
        Those who could still answer.
    seconds
        Since they were asked.
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
        """What the run does now, in a few words."""
        return (
            f"round {self.round}, phase {self.phase!r}: waiting for {self.needed - self.answered} more, of "
            f"{self._missing()}"
        )

    def warning(self, saved: int | None) -> str:
        """Say what is missing, what the run does now, and what can be done.

        Parameters
        ----------
        saved
            The round after which the last checkpoint was written; ``None``: there is none yet.
        """
        stop = "Ctrl-C or SIGTERM stops it, and nothing is saved yet"
        if saved is not None:
            state = f"Everything up to round {saved}" if saved else "The state before round 1"
            stop = f"{state} is saved: Ctrl-C or SIGTERM stops the run, and --resume goes on from there"
        return (
            f"round {self.round}, phase {self.phase!r}: {self.answered} of {self.asked} clients answered within "
            f"{_seconds(self.seconds)}, and it needs {self.needed} ({self.setting}). The run waits for "
            f"{self.needed - self.answered} more, of {self._missing()}, and then goes on at once. {stop}"
        )

    def _missing(self) -> str:
        first = heapq.nsmallest(_NAMED, self.missing, key=lambda member: member.name)
        named = ", ".join(f"{each.name} ({'connected' if each.connected else 'away'})" for each in first)
        others = len(self.missing) - len(first)
        return named + (f" and {others} more" if others else "")


class Shortfalls:
    """The phases of a run that wait for their quorum beyond a deadline."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Shortfall] = {}
        self._due: set[Hashable] = set()  # requests whose shortfall it is time to log
        self._changed = asyncio.Event()

    def note(self, request: Hashable, shortfall: Shortfall, *, log: bool) -> None:
        """Note how far a request is from its quorum; ``log``: it is time to say so in the log."""
        self._open[request] = shortfall
        if log:
            self._due.add(request)
        self._changed.set()

    def over(self, request: Hashable) -> None:
        """Note that a request no longer waits, if it did."""
        if self._open.pop(request, None) is not None:
            self._changed.set()

    async def watch(self, waits: Callable[[str], None], secure: Callable[[], Awaitable[int | None]]) -> None:
        """Report shortfalls until cancelled.

        Parameters
        ----------
        waits
            Called with what the run waits for in a few words, whenever that changes; empty: nothing any more.
        secure
            Saves the run before the log says that it waits; returns the last round that is saved.
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
        """Say in the log that the run waits, and what is saved; nothing, if it goes on meanwhile."""
        saved = await secure()
        shortfall = self._open.get(request)
        if shortfall is not None:
            log.warning("%s", shortfall.warning(saved))


def _seconds(duration: float) -> str:
    return f"{duration:.0f} s" if duration >= 10 else f"{duration:.2g} s"


def nobody_left(t: int, clients: int, exhausted: str = "") -> RunStoppedError:
    """Return what stops a run whose clients are all lost, or have spent their privacy budgets.

    Parameters
    ----------
    exhausted
        Says how many have spent their privacy budgets, if that is the reason.
    """
    if exhausted:
        return RunStoppedError(
            f"{exhausted}. Everything up to the last checkpoint is saved; a longer run needs more noise, "
            "set before it begins, or policies that allow more",
            round=t,
        )
    return RunStoppedError(
        f"all {clients} clients are lost (the log has the reason of each), so nobody can go on. Put their "
        "--state folders back and go on with --resume RUN --previous, as the last checkpoint may count clients as lost "
        "already; or begin a new run",
        round=t,
    )


def quorum(participation: Participation, phase: str, wanted: int | None, needed: int | None) -> tuple[int, str]:
    """Return how many replies a phase needs, and which key, or who, says so."""
    key = f"participation.phases.{phase}.min_replies"
    if needed is None:
        return (participation.min_replies, "participation.min_replies") if wanted is None else (wanted, key)
    if wanted is not None and wanted > needed:
        return wanted, key
    return needed, f"as phase {phase!r} cannot do with fewer"
