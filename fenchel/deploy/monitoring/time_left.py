"""Estimate of the remaining time of a run, from its latest rounds."""

from __future__ import annotations

import math
import statistics
from collections import deque

from fenchel.common.storage.round_columns import Row

_FEWEST, _MOST = 3, 20  # smallest and largest number of recent rounds used for an estimate


class TimeLeft:
    """Estimate of the time until the end of the last round, updated after each round.

    Parameters
    ----------
    rounds
        Number of planned rounds.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        # Durations of a round and of its evaluation, in seconds.
        self._last: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self.seconds: float | None = None
        """Estimated remaining seconds; ``None`` without enough rounds, and after the last round."""

    def round_ended(self, row: Row) -> None:
        """Update the estimate with a completed round."""
        evaluation = row.get("evaluation_s", math.nan)
        self._last.append((row["seconds"], 0.0 if math.isnan(evaluation) else evaluation))
        remaining = self._rounds - int(row["round"])
        self.seconds = None
        if remaining > 0 and len(self._last) >= _FEWEST:
            seconds, evaluations = zip(*self._last, strict=True)
            # The median of evaluations would be 0 or too long in runs that evaluate only after some rounds.
            self.seconds = remaining * (statistics.median(seconds) + statistics.fmean(evaluations))
