"""Progress display of a run below its notebook cell."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from html import escape
from typing import Any

from fenchel.common.storage.round_columns import Row
from fenchel.deploy.monitoring.time_left import TimeLeft
from fenchel.report.formatting import seconds_text
from fenchel.server.telemetry.observer import Observer
from fenchel.server.telemetry.summary import Summary

_PAUSE = 0.2  # minimum interval between updates, in seconds
_SHOWN = ("objective", "gap", "test_accuracy", "test_auc", "holdout_accuracy")


def notebook_display() -> Any:
    """Return IPython's function ``display`` in a notebook, otherwise ``None``."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return ipython.display.display if type(shell).__name__ == "ZMQInteractiveShell" else None


class NotebookProgress(Observer):
    """Progress display with a bar, the latest figures and the remaining time."""

    def __init__(self, display: Any, rounds: int) -> None:
        self._rounds = rounds
        self._left = TimeLeft(rounds)
        self._shown = 0.0
        self._row: Row = {}
        self._handle = display(_Bar("starting", 0, rounds), display_id=True)

    def joined(self, present: int, expected: int | None) -> None:
        """Show the number of clients that have joined."""
        self._show(f"{present} of {expected or 'any number of'} clients", 0)

    def round_ended(self, row: Row) -> None:
        """Show the latest round, at most a few times a second."""
        self._row = row
        self._left.round_ended(row)
        now = time.monotonic()
        if now - self._shown >= _PAUSE:
            self._shown, t = now, int(row["round"])
            left = "" if self._left.seconds is None else f" · about {seconds_text(self._left.seconds)} left"
            self._show(f"round {t} of {self._rounds}{_figures(row)}{left}", t)

    def ended(self, summary: Summary) -> None:
        """Show the end of the run."""
        words = f"{summary.rounds} rounds{_figures(self._row)} · {summary.seconds:.1f} s"
        self._show(words if summary.completed else f"stopped after {words}", summary.rounds)

    def _show(self, words: str, done: int) -> None:
        self._handle.update(_Bar(words, done, self._rounds))


@dataclass(frozen=True, repr=False)
class _Bar:
    """Progress bar with text, displayed by a notebook."""

    words: str
    done: int
    rounds: int

    def _repr_html_(self) -> str:
        return f'<progress value="{self.done}" max="{self.rounds}"></progress> {escape(self.words)}'

    def __repr__(self) -> str:
        return self.words


def _figures(row: Row) -> str:
    shown = [(name, float(row[name])) for name in _SHOWN if name in row and not math.isnan(float(row[name]))]
    return "".join(f" · {name.replace('_', ' ')} {value:.4g}" for name, value in shown)
