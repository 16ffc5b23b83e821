"""Observers of a run on the server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from fenchel.common.errors import FenchelError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.calls import Call
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.membership.admission import Admission
from fenchel.server.telemetry.recorder import Row
from fenchel.server.telemetry.summary import Summary

log = logging.getLogger("fenchel.server")


class OngoingRun(Protocol):
    """Run that an observer is attached to."""

    @property
    def settings(self) -> RunSettings:
        """Validated settings, defaults included."""

    @property
    def folder(self) -> RunFolder:
        """Run folder. Its ``id`` identifies the run, its ``path`` is where an observer may write files."""

    @property
    def admission(self) -> Admission:
        """Clients of the run and their connections."""

    @property
    def disclosures(self) -> DisclosureRecord:
        """Record of the data that leaves the server or reaches it."""


class StopRun(Exception):
    """Raised by an observer, ends a run after the round that goes on, as if that were the last one.

    The final model is evaluated and saved, and the run is complete; its summary has the text as the reason. Resumed, it
    goes on with the rounds that are left, unless it is encrypted.
    """


class Observer:
    """Base class of observers of a run; its methods do nothing.

    Derive from it, override the methods of interest, and pass an object to :func:`fenchel.up`.

    All methods but :meth:`ended` are called on the event loop of the server.
    A method that blocks delays the run, so slow work belongs in a thread of the observer.
    Nothing that an observer does changes the model.

    An observer that fails does not stop the run: its first exception is logged as a warning, further ones are
    ignored, and its methods are still called.
    To end the run on purpose, raise :class:`StopRun`. A :class:`fenchel.FenchelError` stops it as a failure does.
    """

    def begun(self, run: OngoingRun) -> None:
        """Handle the start of the run, before clients are admitted.

        Called exactly once by each process that conducts the run: a resumed run begins again.

        Parameters
        ----------
        run
            The run: its settings and its folder.
        """

    def joined(self, present: int, expected: int | None) -> None:
        """Handle the arrival of a client.

        Parameters
        ----------
        present
            Clients that have described their data so far.
        expected
            Clients that the run waits for; ``None`` if their number is open.
        """

    def stream_opened(self, client: str, traceparent: str) -> None:
        """Handle a new stream of a client, at its first connection and at each reconnection.

        Parameters
        ----------
        client
            Id of the client.
        traceparent
            W3C trace context that the client sent, as it came; empty if it sent none.
        """

    def round_begun(self, t: int) -> None:
        """Handle the beginning of a round.

        Parameters
        ----------
        t
            Number of the round, from 1. A resumed run begins with the round after its checkpoint.
        """

    def trace_context(self, phase: str, t: int) -> str:
        """Return the W3C trace context to be sent with the instructions of a phase.

        Parameters
        ----------
        phase
            Name of the phase, about to be sent to its clients.
        t
            Number of the round.

        Returns
        -------
        str
            ``traceparent``, or an empty string for none.
        """
        return ""

    def calls(self, calls: Sequence[Call]) -> None:
        """Handle the instructions of a round after it has ended, and at last those that belong to none.

        Parameters
        ----------
        calls
            One for each instruction: a row of ``calls.parquet``.
        """

    def round_ended(self, row: Row) -> None:
        """Handle the figures of a round, after :meth:`calls`.

        Called within 20 ms of the end of a round, or while clients work on the next one, whichever is sooner.

        Parameters
        ----------
        row
            Figures of the round by name: a row of ``metrics.parquet``, with ``row["round"]`` the number of the round.
            Not-a-number where the round has no such figure, as for an evaluation that was not due.
        """

    def waiting(self, reason: str) -> None:
        """Handle a wait for replies beyond their deadline.

        Parameters
        ----------
        reason
            What the run waits for; empty when it goes on.
        """

    def ended(self, summary: Summary) -> None:
        """Handle the end of the run, be it completed, failed or interrupted.

        Called exactly once after :meth:`begun`, as the last method, in a thread: it may wait until everything is sent.

        Parameters
        ----------
        summary
            Outcome: ``completed``, ``reason``, ``rounds``, ``seconds`` and the final ``figures`` by name.
        """


class Observers(Observer):
    """Several observers as one: calls all of them in order, and keeps their exceptions from the run.

    Parameters
    ----------
    *observers
        Observers, also other ``Observers``. The first trace context that one returns is used.
    """

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self._failed: set[int] = set()
        self._stopped = ""

    @property
    def stopped(self) -> str:
        """Reason of the first :class:`StopRun`; empty as long as there is none."""
        inner = (each.stopped for each in self.observers if isinstance(each, Observers))
        return self._stopped or next(filter(None, inner), "")

    def begun(self, run: OngoingRun) -> None:
        """Call all observers."""
        self._stopped = ""  # of a run before this one
        self._call("begun", run)

    def joined(self, present: int, expected: int | None) -> None:
        """Call all observers."""
        self._call("joined", present, expected)

    def stream_opened(self, client: str, traceparent: str) -> None:
        """Call all observers."""
        self._call("stream_opened", client, traceparent)

    def round_begun(self, t: int) -> None:
        """Call all observers."""
        self._call("round_begun", t)

    def trace_context(self, phase: str, t: int) -> str:
        """Call all observers; return the first trace context."""
        return next(filter(None, self._call("trace_context", phase, t)), "")

    def calls(self, calls: Sequence[Call]) -> None:
        """Call all observers."""
        self._call("calls", calls)

    def round_ended(self, row: Row) -> None:
        """Call all observers."""
        self._call("round_ended", row)

    def waiting(self, reason: str) -> None:
        """Call all observers."""
        self._call("waiting", reason)

    def ended(self, summary: Summary) -> None:
        """Call all observers."""
        self._call("ended", summary)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all observers; raise the first error that stops the run after all were called."""
        returned: list[Any] = []
        stop: FenchelError | None = None
        for observer in self.observers:
            try:
                returned.append(getattr(observer, method)(*arguments))
            except StopRun as end:
                self._stopped = self._stopped or str(end) or "an observer has stopped it"
            except FenchelError as error:
                stop = stop or error
            except Exception as error:
                self._warn(observer, method, error)
        if stop is not None:
            raise stop
        return returned

    def _warn(self, observer: Observer, method: str, error: Exception) -> None:
        if id(observer) in self._failed:
            return
        self._failed.add(id(observer))
        log.warning(
            "observer %s failed in %s (%s: %s). The run goes on. Further errors of this observer are not logged",
            type(observer).__name__,
            method,
            type(error).__name__,
            error,
        )
        log.info("an observer failed", exc_info=error)
