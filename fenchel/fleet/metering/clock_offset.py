"""Estimate of the offset between a client's clock and the server's, from the time stamps of their messages.

A message cannot arrive before it was sent. So each message from the client gives an upper bound on the offset (server
minus client), and each message to the client a lower bound. The offset lies between the tightest bounds, even if the
two directions have different delays. The estimate is their midpoint, with half of their distance as its error. (Mills,
RFC 5905, section 8, uses the same stamps, and assumes equal delays.)
"""

from __future__ import annotations

from dataclasses import dataclass

_DRIFT = 1e-4
"""Largest drift between two clocks, in seconds per second: each quartz is off by up to 50 parts in a million."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Estimate of a client's clock offset: the time of the server's clock minus the time of the client's.

    Attributes
    ----------
    ns
        Offset in nanoseconds.
    error_ns
        Bound on the absolute error of ``ns`` in nanoseconds, valid unless a clock was set after the messages used.
    """

    ns: int
    error_ns: int


@dataclass(slots=True)
class _Bound:
    ns: int
    when: int

    def slack(self, now: int) -> int:
        """Return the nanoseconds by which clock drift may have loosened the bound until ``now``."""
        return int(abs(now - self.when) * _DRIFT)


@dataclass(slots=True)
class Clock:
    """Bounds on the offset of one client's clock. Stamps are nanoseconds since 1970, each by its owner's clock.

    A bound loosens with time because of clock drift, and the next message with a tighter bound replaces it. If two
    bounds contradict each other, a clock was set, and the older bound is dropped.
    """

    _most: _Bound | None = None
    _least: _Bound | None = None
    _latest: _Bound | None = None  # bound from the latest message to the client

    def sent(self, by_server: int, by_client: int) -> None:
        """Update the bounds with a message to the client.

        Parameters
        ----------
        by_server
            Time of sending, by the server's clock.
        by_client
            Time of receipt, by the client's clock.
        """
        bound = _Bound(by_server - by_client, by_server)
        most, least, self._latest = self._most, self._least, bound
        if most is not None and bound.ns > most.ns + most.slack(by_server):
            self._most, self._least = None, bound
        elif least is None or bound.ns >= least.ns - least.slack(by_server):
            self._least = bound

    def heard(self, by_client: int, by_server: int) -> None:
        """Update the bounds with a message from the client.

        Parameters
        ----------
        by_client
            Time of sending, by the client's clock.
        by_server
            Time of receipt, by the server's clock.
        """
        bound = _Bound(by_server - by_client, by_server)
        most, least = self._most, self._least
        if least is not None and bound.ns < least.ns - least.slack(by_server):
            # The server stamped its latest message after the clock was set, so the bound from that message is valid.
            self._most, self._least = bound, self._latest
            if self._latest is not None and self._latest.ns > bound.ns:
                self._least = None
        elif most is None or bound.ns <= most.ns + most.slack(by_server):
            self._most = bound

    def at(self, now: int) -> Offset | None:
        """Return the offset at time ``now`` of the server's clock; ``None`` without bounds from both directions."""
        if self._most is None or self._least is None:
            return None
        most = self._most.ns + self._most.slack(now)
        least = self._least.ns - self._least.slack(now)
        return Offset((most + least) // 2, (most - least + 1) // 2)
