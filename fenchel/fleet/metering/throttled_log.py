"""What the log says of single clients: enough to see what is wrong, and not so much that one of them fills the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("fenchel.server")

AT_ONCE = 5
"""Lines about one client that are written as they come."""

EVERY = 10.0
"""Seconds for each line about it after those."""

_REMEMBERED = 10_000  # clients; beyond, it is forgotten what was said


@dataclass
class _Said:
    """What has been said of one client."""

    last: str = ""
    room: float = AT_ONCE
    since: float = 0.0
    left_out: int = 0


@dataclass
class ThrottledLog:
    """Writes lines about clients, at a pace for each client, whatever it does to be written about.

    Attributes
    ----------
    clock
        Seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _said: dict[str, _Said] = field(default_factory=dict)

    def add(self, level: int, client: str, line: str) -> None:
        """Write a line about a client, unless it is the last one again, or too many were written of late."""
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
        left_out = f" ({said.left_out} more lines about this client were left out)" if said.left_out else ""
        said.left_out = 0
        log.log(level, "%s%s", line, left_out)
