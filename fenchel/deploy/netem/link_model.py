"""Link model: arrival times of bytes at the other end of an emulated link."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fenchel.common.settings.link import Link

LONGEST_JITTER = 10.0
"""Largest random delay in units of its mean. Without this limit, one draw in 22,000 would exceed it (e^-10)."""

QUEUE_SECONDS = 0.1
"""Capacity of the queue, in seconds of transmission at the link's bandwidth, similar to that of a home router."""

_LARGEST_CHUNK, _SMALLEST_CHUNK = 1 << 18, 1 << 10
_CHUNK_SECONDS = 0.004  # transmission time of a chunk in seconds; short, because the model delivers a chunk as a whole
_UNLIMITED_CAPACITY = 64 << 20


@dataclass
class LinkModel:
    """One direction of a link.

    Attributes
    ----------
    delay
        Propagation delay of each byte in seconds.
    jitter
        Mean of an additional exponential delay in seconds; 0 for none.
    rate
        Bandwidth in bytes per second; ``None`` for no limit.
    draws
        Generator of the jitter.
    free_at
        Time at which all bytes sent so far have left the queue.
    """

    delay: float
    jitter: float
    rate: float | None
    draws: np.random.Generator
    free_at: float = -math.inf

    def arrival(self, now: float, size: int) -> float:
        """Send bytes, and return the arrival time of the last of them.

        The bytes leave after all earlier bytes, at the rate of the link, and arrive after the delay and the jitter. The
        caller must keep the bytes of a connection in order, by taking the latest arrival time so far.

        Parameters
        ----------
        now
            Current time in seconds, which does not decrease from call to call.
        size
            Number of bytes.
        """
        self.free_at = max(now, self.free_at)
        if self.rate is not None:
            self.free_at += size / self.rate
        extra = 0.0
        if self.jitter:
            extra = self.jitter * min(float(self.draws.standard_exponential()), LONGEST_JITTER)
        return self.free_at + self.delay + extra

    def full_for(self, now: float) -> float:
        """Return the seconds until the queue accepts more bytes."""
        return max(0.0, self.free_at - now - QUEUE_SECONDS)

    @property
    def chunk(self) -> int:
        """Largest number of bytes sent at once, small on a limited link, as the model delivers a chunk as a whole."""
        if self.rate is None:
            return _LARGEST_CHUNK
        return max(_SMALLEST_CHUNK, min(int(self.rate * _CHUNK_SECONDS), _LARGEST_CHUNK))

    @property
    def capacity(self) -> int:
        """Largest number of bytes of one connection in flight and in the queue."""
        if self.rate is None:
            return _UNLIMITED_CAPACITY
        longest = self.delay + LONGEST_JITTER * self.jitter + QUEUE_SECONDS
        return math.ceil(self.rate * longest) + 2 * self.chunk


def ways(link: Link, up_draws: np.random.Generator, down_draws: np.random.Generator) -> tuple[LinkModel, LinkModel]:
    """Return the models of uplink and downlink, each with its bandwidth and half of the round-trip time and jitter."""
    delay, jitter = link.rtt / 2, link.jitter / 2
    return LinkModel(delay, jitter, link.upload, up_draws), LinkModel(delay, jitter, link.download, down_draws)


def cut_times(link: Link, draws: np.random.Generator) -> Iterator[float]:
    """Yield the times at which a link is cut, in seconds from its first connection.

    These are the times of ``cut_at``, and random times with exponential intervals of mean ``cut_every`` while the link
    is up. Times at which the link is already down are omitted.
    """
    up_since = 0.0
    while True:
        chance = math.inf if link.cut_every is None else link.cut_every * float(draws.standard_exponential())
        planned = min((time for time in link.cut_at if time >= up_since), default=math.inf)
        cut = min(up_since + chance, planned)
        if math.isinf(cut):
            return
        yield cut
        # Advance by at least the smallest step, so that the loop does not find an outage of zero length again.
        up_since = math.nextafter(cut + link.cut_for, math.inf)
