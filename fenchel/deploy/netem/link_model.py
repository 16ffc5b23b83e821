"""When bytes come out at the other end of a link: the model that the relay carries out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fenchel.common.settings.link import Link

LONGEST_JITTER = 10.0
"""Times its mean at which the random delay is cut off: e^-10, one draw in 22,000."""

QUEUE_SECONDS = 0.1
"""What may wait to leave at one time, in seconds of the bandwidth, as in the buffer of a home router."""

_LARGEST_CHUNK, _SMALLEST_CHUNK = 1 << 18, 1 << 10
_CHUNK_SECONDS = 0.004  # a chunk arrives as a whole, so it must not be long on its way
_UNLIMITED_CAPACITY = 64 << 20


@dataclass
class LinkModel:
    """One direction of a link.

    Attributes
    ----------
    delay
        Seconds that each byte is on its way.
    jitter
        Mean, in seconds, of an exponential delay on top of it; 0: none.
    rate
        Bytes per second that can leave; ``None``: any number.
    draws
        Where the jitter comes from.
    free_at
        When everything that has been sent so far will have left.
    """

    delay: float
    jitter: float
    rate: float | None
    draws: np.random.Generator
    free_at: float = -math.inf

    def arrival(self, now: float, size: int) -> float:
        """Send some bytes, and return when the last of them arrives.

        They leave after those that were sent before, one after the other at the rate of the way, and are then
        under way for the delay and the jitter. Of one connection they must be handed out in the order in
        which they came, so the caller takes the latest of the arrivals so far.

        Parameters
        ----------
        now
            The time, which never goes back from call to call.
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
        """Return the seconds until the queue in front of the way takes more."""
        return max(0.0, self.free_at - now - QUEUE_SECONDS)

    @property
    def chunk(self) -> int:
        """Bytes that are sent at once, at most: few enough that the first of them do not wait long for the last."""
        if self.rate is None:
            return _LARGEST_CHUNK
        return max(_SMALLEST_CHUNK, min(int(self.rate * _CHUNK_SECONDS), _LARGEST_CHUNK))

    @property
    def capacity(self) -> int:
        """Bytes of one connection that the way holds at most: those under way, and the queue."""
        if self.rate is None:
            return _UNLIMITED_CAPACITY
        longest = self.delay + LONGEST_JITTER * self.jitter + QUEUE_SECONDS
        return math.ceil(self.rate * longest) + 2 * self.chunk


def ways(link: Link, up_draws: np.random.Generator, down_draws: np.random.Generator) -> tuple[LinkModel, LinkModel]:
    """Return a link's way up and its way down: each has half the round trip, and a bandwidth of its own."""
    delay, jitter = link.rtt / 2, link.jitter / 2
    return LinkModel(delay, jitter, link.upload, up_draws), LinkModel(delay, jitter, link.download, down_draws)


def cut_times(link: Link, draws: np.random.Generator) -> Iterator[float]:
    """Yield when a link is cut, in seconds from its first connection.

    The times of ``cut_at``, and random ones: while the link is up, the next is an exponential time of mean
    ``cut_every`` away. What falls into the time that the link is down anyway is left out.
    """
    up_since = 0.0
    while True:
        chance = math.inf if link.cut_every is None else link.cut_every * float(draws.standard_exponential())
        planned = min((time for time in link.cut_at if time >= up_since), default=math.inf)
        cut = min(up_since + chance, planned)
        if math.isinf(cut):
            return
        yield cut
        # The smallest step, so that a cut of no length is not found again.
        up_since = math.nextafter(cut + link.cut_for, math.inf)
