"""Where a run's progress goes while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fenchel.common.settings.run import RunSettings
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.fleet.calls import Call
from fenchel.server.membership.admission import Admission
from fenchel.server.telemetry.recorder import Row


class Conductor(Protocol):
    """Who conducts a run, as far as those that watch it look."""

    @property
    def settings(self) -> RunSettings:
        """Of the run."""

    @property
    def admission(self) -> Admission:
        """Who takes part in it."""

    @property
    def disclosures(self) -> DisclosureRecord:
        """The account of what crossed."""


@dataclass(frozen=True)
class RunObserver:
    """Where a run's progress goes while it runs: nowhere, unless the command line or a test asks."""

    joined: Callable[[int, int | None], None] = lambda present, expected: None
    """Called with the number of clients described so far and the number expected (``None``: open)."""
    row: Callable[[Row], None] = lambda row: None  # called with the figures of each round
    conducting: Callable[[Conductor], None] = lambda conductor: None
    """Called once, on the event loop of the run, with who conducts it."""
    begins: Callable[[int], None] = lambda t: None  # called with the number of each round that begins
    calls: Callable[[Sequence[Call]], None] = lambda calls: None
    """Called with the instructions of each round once they are over, and with those that belong to none."""
    opened: Callable[[str, str], None] = lambda client, traceparent: None
    """Called with the id of a client that opens a stream, and the trace context it names; empty: none."""
    traced: Callable[[str, int], str] = lambda phase, t: ""
    """Called with each phase that is about to be asked, and its round; returns the trace context that goes with its
    instructions, or nothing."""
    waits: Callable[[str], None] = lambda words: None
    """Called when the run waits for replies beyond their deadline, with what it waits for in a few words; empty: it
    goes on."""

    def beside(self, other: RunObserver) -> RunObserver:
        """Return an observer that tells this one and then another; only one of them can trace."""

        def both(name: str) -> Callable[..., None]:
            first, second = getattr(self, name), getattr(other, name)

            def tell(*told: object) -> None:
                first(*told)
                second(*told)

            return tell

        return RunObserver(
            joined=both("joined"),
            row=both("row"),
            conducting=both("conducting"),
            begins=both("begins"),
            calls=both("calls"),
            opened=both("opened"),
            traced=lambda phase, t: self.traced(phase, t) or other.traced(phase, t),
            waits=both("waits"),
        )
