"""How long to wait before trying again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Exponential back-off with full jitter: clients that lost the same server do not return together."""

    first: float = 0.1  # first, longest: seconds: the upper bound of the first wait, and of any wait
    longest: float = 5.0
    _attempts: int = 0

    def next(self) -> float:
        """Return the next wait in seconds."""
        bound = min(self.first * 2.0**self._attempts, self.longest)
        self._attempts = min(self._attempts + 1, 32)
        # Jitter is no part of a run's result, so it need not be reproducible.
        return random.uniform(bound / 2, bound)  # noqa: S311

    def reset(self) -> None:
        """Start again from the first wait: something worked."""
        self._attempts = 0
