"""How much of the server one client may take: calls at once, and calls in a second.

A client that keeps to the protocol never notices. One that does not is slowed down, then turned away, and the
others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from common.errors import FenchelError
from common.settings.run import Network

log = logging.getLogger("fenchel.server")

_REMEMBERED = 10_000  # clients; beyond, those without an open call are forgotten
_TOLD_EVERY = 1000  # refusals; each in the log would let a client fill the disk


class CrowdedError(FenchelError):
    """A client has as many calls open as it may have."""


@dataclass
class Pace:
    """Lets events pass at a rate, after some that pass at once (a token bucket).

    Parameters
    ----------
    rate
        Events in a second.
    burst
        Events that may come at once.
    """

    rate: float
    burst: float
    _debt: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def delay(self) -> float:
        """Count an event; return the seconds after which it may pass."""
        now = time.monotonic()
        self._debt = max(self._debt - (now - self._since) * self.rate, 0.0) + 1.0
        self._since = now
        return max(self._debt - self.burst, 0.0) / self.rate


@dataclass
class _Visitor:
    """One client, as the gate knows it."""

    begun: Pace
    probes: Pace
    open: int = 0
    refused: int = 0
    slowed: bool = False


class Gate:
    """Stands before every call of a client whose identity is known.

    Parameters
    ----------
    network
        The limits.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._open = 0
        self._full = False  # as the log was told
        self._visitors: dict[str, _Visitor] = {}
        self._forgetting = _REMEMBERED

    @asynccontextmanager
    async def passed(self, client: str, *, probe: bool = False) -> AsyncIterator[None]:
        """Count a call of a client as open for the duration of a ``with`` block; wait first if it comes too soon.

        Parameters
        ----------
        client
            Who calls.
        probe
            Whether the call is one of many that a measurement makes.

        Raises
        ------
        CrowdedError
            The client has as many calls open as it may have.
        """
        visitor, most = self._visitor(client), self._network.max_calls_per_client
        if visitor.open >= most:
            visitor.refused += 1
            if visitor.refused % _TOLD_EVERY == 1:
                log.warning(
                    "client %r has %d calls open and is refused more (network.max_calls_per_client; %d times so far)",
                    client,
                    visitor.open,
                    visitor.refused,
                )
            raise CrowdedError(
                f"client {client!r} has {visitor.open} calls open, and may have {most} (network.max_calls_per_client)"
            )
        visitor.open += 1
        self._open += 1
        self._tell_if_full()
        try:
            delay = (visitor.probes if probe else visitor.begun).delay()
            if delay and not visitor.slowed:
                visitor.slowed = True
                log.warning(
                    "client %r begins more calls than it may (network.%s); they wait from now on",
                    client,
                    "probes_per_second" if probe else "calls_per_second",
                )
            if delay:
                await asyncio.sleep(delay)
            yield
        finally:
            visitor.open -= 1
            self._open -= 1

    def _tell_if_full(self) -> None:
        """Say once that the next call will be turned away: gRPC does that itself, without a word here."""
        if self._open >= self._network.max_calls and not self._full:
            self._full = True
            log.warning(
                "all %d calls that the server may have open are open (network.max_calls): it turns away those that "
                "come now, and their clients try again. If so many clients are meant to come: a new run with a larger "
                "limit",
                self._network.max_calls,
            )

    def _visitor(self, client: str) -> _Visitor:
        if client not in self._visitors and len(self._visitors) >= self._forgetting:
            self._visitors = {name: kept for name, kept in self._visitors.items() if kept.open}
            self._forgetting = max(_REMEMBERED, 2 * len(self._visitors))
        network = self._network
        fresh = _Visitor(
            Pace(network.calls_per_second, network.calls_at_once),
            Pace(network.probes_per_second, network.probes_per_second),
        )
        return self._visitors.setdefault(client, fresh)
