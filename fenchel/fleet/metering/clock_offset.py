"""How far a client's clock is from the server's, from the messages between them alone.

A message cannot arrive before it was sent. So each one that a client sends says how much the server's clock can
be ahead of the client's at most, and each one that it receives how much it must be at least. The truth lies
between the tightest bounds of both kinds, however unlike the two directions are; half of what is left between
them is the error. (Mills, RFC 5905, section 8, has the same stamps, and takes both directions to be alike.)
"""

from __future__ import annotations

from dataclasses import dataclass

_DRIFT = 1e-4
"""Two clocks run apart by so many seconds a second at most: quartz is off by up to 50 parts in a million."""


@dataclass(frozen=True, slots=True)
class Offset:
    """An estimate: the server's clock minus the client's.

    Attributes
    ----------
    ns
        Nanoseconds.
    error_ns
        It is wrong by so much at most, unless a clock was set meanwhile.
    """

    ns: int
    error_ns: int


@dataclass(slots=True)
class _Bound:
    ns: int
    when: int

    def slack(self, now: int) -> int:
        """Return by how much the bound has loosened: the clocks may have run apart."""
        return int(abs(now - self.when) * _DRIFT)


@dataclass(slots=True)
class Clock:
    """What is known of one client's clock. All stamps are nanoseconds since 1970, each by its owner's clock.

    A bound loosens as time goes by and is replaced by the next message that says more. Bounds that contradict
    each other mean that somebody has set a clock: the older one is forgotten.
    """

    _most: _Bound | None = None
    _least: _Bound | None = None
    _latest: _Bound | None = None  # of the messages to the client

    def sent(self, by_server: int, by_client: int) -> None:
        """Take note of a message to the client: when the server sent it, and when the client had it."""
        bound = _Bound(by_server - by_client, by_server)
        most, least, self._latest = self._most, self._least, bound
        if most is not None and bound.ns > most.ns + most.slack(by_server):
            self._most, self._least = None, bound
        elif least is None or bound.ns >= least.ns - least.slack(by_server):
            self._least = bound

    def heard(self, by_client: int, by_server: int) -> None:
        """Take note of a message from the client: when the client sent it, and when the server had it."""
        bound = _Bound(by_server - by_client, by_server)
        most, least = self._most, self._least
        if least is not None and bound.ns < least.ns - least.slack(by_server):
            # The message that this one answers was seen by the clock as it is now.
            self._most, self._least = bound, self._latest
            if self._latest is not None and self._latest.ns > bound.ns:
                self._least = None
        elif most is None or bound.ns <= most.ns + most.slack(by_server):
            self._most = bound

    def at(self, now: int) -> Offset | None:
        """Return the estimate for a moment of the server's clock; ``None`` before both directions were seen."""
        if self._most is None or self._least is None:
            return None
        most = self._most.ns + self._most.slack(now)
        least = self._least.ns - self._least.slack(now)
        return Offset((most + least) // 2, (most - least + 1) // 2)
