"""Limits on each caller's calls: the number of open calls, and the number of calls that begin per second.

A client that follows the protocol never reaches these limits. Calls that exceed them are delayed or refused, and the
calls of other clients are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fenchel.common.errors import FenchelError
from fenchel.fleet.metering.limits import Limits

log = logging.getLogger("fenchel.server")

_REMEMBERED = 10_000  # number of clients above which the limiter drops those without an open call
_FULL_SECONDS = 60.0  # shortest time in seconds between two warnings that the limit of open calls is reached
_REFUSALS_PER_SECOND = 1.0
_REFUSALS_AT_ONCE = 20


class CrowdedError(FenchelError):
    """Error for a call of a client that already has its largest number of open calls."""


@dataclass
class TokenBucket:
    """Token bucket for events or bytes.

    Attributes
    ----------
    rate
        Events or bytes per second.
    burst
        Number of events or bytes that pass without delay.
    """

    rate: float
    burst: float
    _debt: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def delay(self, number: float = 1.0) -> float:
        """Count ``number`` events or bytes, and return the seconds after which they may pass."""
        now = time.monotonic()
        self._debt = max(self._debt - (now - self._since) * self.rate, 0.0) + number
        self._since = now
        return max(self._debt - self.burst, 0.0) / self.rate


@dataclass
class _Visitor:
    """State of the rate limiter for one client."""

    begun: TokenBucket
    probes: TokenBucket
    probe_bytes: TokenBucket
    refusals: TokenBucket = field(default_factory=lambda: TokenBucket(_REFUSALS_PER_SECOND, _REFUSALS_AT_ONCE))
    open: int = 0
    waiting: int = 0
    slowed: bool = False

    @property
    def is_here(self) -> bool:
        """True if the server holds a call of this client, open or delayed before its refusal."""
        return self.open > 0 or self.waiting > 0


class RateLimiter:
    """Rate limiter of calls, with separate limits for each client or other caller."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open = 0
        self._waiting = 0
        self._full_since = -math.inf  # time of the last warning that the limit of open calls was reached
        self._visitors: dict[str, _Visitor] = {}
        self._forgetting = _REMEMBERED

    @asynccontextmanager
    async def passed(self, client: str, *, probe: bool = False) -> AsyncIterator[None]:
        """Delay a call of a client as the rate limit requires, and count it as open until the ``with`` block ends.

        Parameters
        ----------
        client
            Name under which the caller's calls are counted.
        probe
            True if the call belongs to ``fenchel probe``, which has a rate limit of its own.

        Raises
        ------
        CrowdedError
            If the client already has its largest number of open calls.
        """
        visitor, most = self._visitor(client), self._limits.max_calls_per_client
        if visitor.open >= most:
            raise CrowdedError(
                f"client {client!r} has {visitor.open} open calls, its maximum is {most}; close some and try again"
            )
        visitor.open += 1
        self._open += 1
        self._tell_if_full()
        try:
            delay = (visitor.probes if probe else visitor.begun).delay()
            if delay and not visitor.slowed:
                visitor.slowed = True
                log.warning(
                    "client %r makes more %s than its rate limit allows; further ones are delayed",
                    client,
                    "probes" if probe else "calls",
                )
            if delay:
                await asyncio.sleep(delay)
            yield
        finally:
            visitor.open -= 1
            self._open -= 1

    async def refusing(self, client: str) -> None:
        """Delay the refusal of a call. The delay grows with the number of the client's recent refusals.

        Delayed calls take memory. So at most ``max_refusals_per_client`` of one client and ``max_refusals`` of all
        clients are delayed at a time, and this method returns at once for further ones.
        """
        visitor, limits = self._visitor(client), self._limits
        if visitor.waiting >= limits.max_refusals_per_client or self._waiting >= limits.max_refusals:
            return
        visitor.waiting += 1
        self._waiting += 1
        self._tell_if_full()
        try:
            await asyncio.sleep(visitor.refusals.delay())
        finally:
            visitor.waiting -= 1
            self._waiting -= 1

    async def wait_for_bytes(self, client: str, size: int) -> None:
        """Count the bytes of a client's probe, and wait for the delay of the rate limit."""
        await asyncio.sleep(self._visitor(client).probe_bytes.delay(size))

    def _tell_if_full(self) -> None:
        """Log at most once a minute that the limit of open calls is reached, as gRPC refuses further calls silently."""
        now = time.monotonic()
        if self._open + self._waiting >= self._limits.max_calls and now - self._full_since >= _FULL_SECONDS:
            self._full_since = now
            log.warning(
                "the server has reached its maximum of %d open calls; it rejects new ones, and their clients retry",
                self._limits.max_calls,
            )

    def _visitor(self, client: str) -> _Visitor:
        if client not in self._visitors and len(self._visitors) >= self._forgetting:
            self._visitors = {name: kept for name, kept in self._visitors.items() if kept.is_here}
            self._forgetting = max(_REMEMBERED, 2 * len(self._visitors))
        limits = self._limits
        fresh = _Visitor(
            TokenBucket(limits.calls_per_second, limits.calls_at_once),
            TokenBucket(limits.probes_per_second, limits.probes_per_second),
            TokenBucket(limits.probe_bytes_per_second, limits.probe_bytes_at_once),
        )
        return self._visitors.setdefault(client, fresh)
