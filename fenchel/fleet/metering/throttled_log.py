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
class _Said:
    """Record of the lines about one client."""

    last: str = ""
    room: float = AT_ONCE
    since: float = 0.0
    left_out: int = 0


@dataclass
class ThrottledLog:
    """Log of messages about clients, with a rate limit for each client.

    Attributes
    ----------
    clock
        Function that returns the time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _said: dict[str, _Said] = field(default_factory=dict)

    def add(self, level: int, client: str, line: str) -> None:
        """Log a line about a client, unless it repeats the last one or exceeds the rate limit."""
        now = self.clock()
        if client not in self._said and len(self._said) >= _REMEMBERED:
            self._said.clear()
        said = self._said.setdefault(client, _Said(since=now))
        if said.last == line:
            return
        said.room, said.since = min(said.room + (now - said.since) / EVERY, AT_ONCE), now
        if said.room < 1:
            said.left_out += 1
            return
        said.room -= 1
        said.last = line
        left_out = f" ({said.left_out} more lines about this client were omitted)" if said.left_out else ""
        said.left_out = 0
        log.log(level, "%s%s", line, left_out)
