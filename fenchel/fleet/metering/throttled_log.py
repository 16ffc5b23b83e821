"""Throttled log: messages about single clients, at a limited rate, so that no client can fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("fenchel.server")

AT_ONCE = 5
"""Number of lines about one client that are logged in a burst."""

EVERY = 10.0
"""Seconds after which one more line about a client may be logged, once the burst is used up."""

_REMEMBERED = 10_000  # number of clients above which all records are dropped


@dataclass
class _Lines:
    """Record of the lines about one client."""

    since: float
    room: float = AT_ONCE
    last: str = ""
    left_out: int = 0

    def admit(self, line: str, now: float) -> int | None:
        """Return the number of lines left out before this one, or ``None`` if this one is to be left out, too."""
        if self.last == line:
            return None
        self.room, self.since = min(self.room + (now - self.since) / EVERY, AT_ONCE), now
        if self.room < 1:
            self.left_out += 1
            return None
        left_out, self.left_out = self.left_out, 0
        self.room -= 1
        self.last = line
        return left_out


@dataclass
class ThrottledLog:
    """Log of messages about clients, with a rate limit for each client.

    Attributes
    ----------
    clock
        Function that returns the time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _lines: dict[str, _Lines] = field(default_factory=dict)

    def add(self, level: int, client: str, line: str) -> None:
        """Log a line about a client, unless it repeats the last one or exceeds the rate limit."""
        now = self.clock()
        if client not in self._lines and len(self._lines) >= _REMEMBERED:
            self._lines.clear()
        left_out = self._lines.setdefault(client, _Lines(since=now)).admit(line, now)
        if left_out is not None:
            omitted = f" ({left_out} more lines about this client were omitted)" if left_out else ""
            log.log(level, "%s%s", line, omitted)
