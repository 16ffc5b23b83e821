"""An observer made of functions."""

from __future__ import annotations

from collections.abc import Callable

from fenchel.common.storage.round_columns import Row
from fenchel.server.telemetry.observer import Observer, OngoingRun


class Calling(Observer):
    """Calls the functions it is given."""

    def __init__(
        self,
        *,
        begun: Callable[[OngoingRun], None] = lambda run: None,
        round_begun: Callable[[int], None] = lambda t: None,
        round_ended: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self._begun = begun
        self._round_begun = round_begun
        self._round_ended = round_ended

    def begun(self, run: OngoingRun) -> None:
        self._begun(run)

    def round_begun(self, t: int) -> None:
        self._round_begun(t)

    def round_ended(self, row: Row) -> None:
        self._round_ended(row)
