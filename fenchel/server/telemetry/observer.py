"""Observers of a run on the server."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fenchel.common.errors import FenchelError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.calls import Call
from fenchel.server.telemetry.summary import Summary

if TYPE_CHECKING:
    from fenchel.server.disclosure.record import DisclosureRecord
    from fenchel.server.membership.admission import Admission

log = logging.getLogger("fenchel.server")


class OngoingRun(Protocol):
    """Run that an observer is attached to."""

    @property
    def settings(self) -> RunSettings:
        """Validated settings, defaults included."""

    @property
    def folder(self) -> RunFolder:
        """Run folder, with the run's ``id`` and the ``path`` of the folder, in which an observer may write files."""

    @property
    def admission(self) -> Admission:
        """Clients of the run and their connections."""

    @property
    def disclosures(self) -> DisclosureRecord:
        """Record of the data that leaves the server or reaches it."""


class StopRun(Exception):
    """Exception that an observer raises to end a run after the current round.

    That round counts as the last one: the final model is evaluated and saved, and the run is complete. The text of
    the exception is the reason in the run's summary. If the run is resumed, it continues with the remaining rounds. An
    encrypted run cannot be resumed after that.
    """


class Observer:
    """Base class of receivers of the events of a run, with methods that do nothing.

    Derive a class, override the methods of interest, and pass an object to :func:`fenchel.up`. An observer cannot
    change the model.

    All methods but ``ended`` are called on the event loop of the server. A method that blocks delays the run, so slow
    work belongs in a thread of the observer.

    The first exception of an observer is logged as a warning and later ones are ignored. The run goes on, and the
    methods are still called. :class:`fenchel.StopRun` ends the run as completed, and a :class:`fenchel.FenchelError` as
    failed.

    Examples
    --------
    An observer that ends the run at a test accuracy of 95 per cent::

        import fenchel

        class GoodEnough(fenchel.Observer):
            def round_ended(self, row):
                if row["test_accuracy"] >= 0.95:
                    raise fenchel.StopRun("the test accuracy is 95 per cent")

        fenchel.up("quickstart", observer=GoodEnough())
    """

    def begun(self, run: OngoingRun) -> None:
        """Handle the start of the run, before clients are admitted.

        Called once in each server process of the run: a resumed run begins again.

        Parameters
        ----------
        run : OngoingRun
            The run, with ``settings`` (:class:`fenchel.RunSettings`), ``folder.id`` (str) and ``folder.path``
            (pathlib.Path), into which the observer may write files.
        """

    def joined(self, present: int, expected: int | None) -> None:
        """Handle a client that has described its data.

        Also called when a client opens another stream, for example after it has lost its connection.

        Parameters
        ----------
        present : int
            Number of clients that have described their data so far.
        expected : int or None
            Number of clients that the run waits for. ``None`` if the number is not fixed.
        """

    def stream_opened(self, client: str, traceparent: str) -> None:
        """Handle a new stream of a client, at its first connection and at each reconnection.

        Parameters
        ----------
        client : str
            Id of the client.
        traceparent : str
            W3C trace context as the client sent it. Empty if it sent none.
        """

    def round_begun(self, t: int) -> None:
        """Handle the beginning of a round.

        Parameters
        ----------
        t : int
            Number of the round, from 1. A resumed run begins with the round after its checkpoint.
        """

    def trace_context(self, phase: str, t: int) -> str:
        """Return the W3C trace context to be sent with the instructions of a phase.

        Parameters
        ----------
        phase : str
            Name of the phase, about to be sent to its clients.
        t : int
            Number of the round.

        Returns
        -------
        str
            ``traceparent``, or an empty string for none.
        """
        return ""

    def calls(self, calls: Sequence[Call]) -> None:
        """Handle the instructions of a round after its end.

        The instructions of the setup belong to the first round. Those after the last round follow at the end of the
        run.

        Parameters
        ----------
        calls : sequence of Call
            One for each instruction to a client: a row of ``calls.parquet``.
        """

    def round_ended(self, row: Row) -> None:
        """Handle the figures of a round, after its calls.

        Called within 20 ms of the end of a round, or while clients work on the next one, whichever is sooner.

        Parameters
        ----------
        row : mapping of str to float
            Figures by name: a row of ``metrics.parquet``, with the number of the round as ``row["round"]``.
            Not-a-number if the round has no such figure, as for an evaluation that was not due.
        """

    def waiting(self, reason: str) -> None:
        """Handle the beginning, a change or the end of a wait for replies beyond their deadline.

        Parameters
        ----------
        reason : str
            Reason for the wait. Empty when the run goes on.
        """

    def ended(self, summary: Summary) -> None:
        """Handle the end of the run, whether it is completed, failed or interrupted.

        Called once after ``begun``, as the last method, in a thread. The method may block, for example to send data.

        Parameters
        ----------
        summary : Summary
            Outcome: ``completed`` (bool), ``reason`` (str), ``rounds`` (int), ``seconds`` (float) and the final
            ``figures`` by name.
        """


class Observers(Observer):
    """Observer that forwards all events to several observers, in order.

    An exception of one observer does not keep events from the others.

    Parameters
    ----------
    *observers : Observer
        Observers, which may be ``Observers`` themselves.

    Attributes
    ----------
    observers : tuple of Observer
        The observers.
    """

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self._failed: set[int] = set()
        self._stopped = ""

    @property
    def stopped(self) -> str:
        """Reason of the first :class:`fenchel.StopRun`. Empty if there is none."""
        inner = (each.stopped for each in self.observers if isinstance(each, Observers))
        return self._stopped or next(filter(None, inner), "")

    def begun(self, run: OngoingRun) -> None:
        """Forward :meth:`fenchel.Observer.begun`."""
        self._stopped = ""  # clear the reason of an earlier run
        self._call("begun", run)

    def joined(self, present: int, expected: int | None) -> None:
        """Forward :meth:`fenchel.Observer.joined`."""
        self._call("joined", present, expected)

    def stream_opened(self, client: str, traceparent: str) -> None:
        """Forward :meth:`fenchel.Observer.stream_opened`."""
        self._call("stream_opened", client, traceparent)

    def round_begun(self, t: int) -> None:
        """Forward :meth:`fenchel.Observer.round_begun`."""
        self._call("round_begun", t)

    def trace_context(self, phase: str, t: int) -> str:
        """Forward :meth:`fenchel.Observer.trace_context` and return the first trace context that is not empty."""
        return next(filter(None, self._call("trace_context", phase, t)), "")

    def calls(self, calls: Sequence[Call]) -> None:
        """Forward :meth:`fenchel.Observer.calls`."""
        self._call("calls", calls)

    def round_ended(self, row: Row) -> None:
        """Forward :meth:`fenchel.Observer.round_ended`."""
        self._call("round_ended", row)

    def waiting(self, reason: str) -> None:
        """Forward :meth:`fenchel.Observer.waiting`."""
        self._call("waiting", reason)

    def ended(self, summary: Summary) -> None:
        """Forward :meth:`fenchel.Observer.ended`."""
        self._call("ended", summary)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all observers, and return the results. Then raise the first ``FenchelError``, if any."""
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
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            "observer %s failed in %s (%s, line %s: %s: %s). The run continues; further errors of this observer are "
            "not logged",
            type(observer).__name__,
            method,
            frame.filename,
            frame.lineno,
            type(error).__name__,
            error,
        )
        log.info("an observer failed", exc_info=error)
