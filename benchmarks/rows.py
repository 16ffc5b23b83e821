"""Figures of a run's rounds, kept in memory."""

from __future__ import annotations

from fenchel.common.storage.round_columns import Row
from fenchel.server.telemetry.observer import Observer


class Rows(Observer):
    """Keeps the rows of a run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def round_ended(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)

    @property
    def ends(self) -> list[float]:
        """Seconds since 1970 at which rounds ended; their rows are noted some time later."""
        return [row["unix"] for row in self.rows]
