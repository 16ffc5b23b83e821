"""Rate limits of unsolicited replies, which answer no instruction of this run that the server still knows."""

from __future__ import annotations

import asyncio
import logging

from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.rate_limit import TokenBucket

log = logging.getLogger("fenchel.server")

_REPLIES_AT_ONCE = 100
_FRAMES_AT_ONCE = 1024

MOST_VALUES = 100
"""Largest number of values in an unsolicited reply, unless a request to the client has asked for more."""


class UnsolicitedReplyLimiter:
    """Rate limits of the unsolicited replies of one client, over all its streams."""

    def __init__(self, client: str, limits: Limits) -> None:
        self._client = client
        self._replies = TokenBucket(limits.unsolicited_per_second, _REPLIES_AT_ONCE)
        self._frames = TokenBucket(limits.unsolicited_frames_per_second, _FRAMES_AT_ONCE)
        self._logged = False

    async def reply(self) -> None:
        """Count an unsolicited reply, and wait for the delay of the rate limit before the next message is read."""
        await self._slow(self._replies)

    async def frame(self) -> None:
        """Count a frame of an unsolicited reply, and wait for the delay of the rate limit."""
        await self._slow(self._frames)

    async def _slow(self, pace: TokenBucket) -> None:
        delay = pace.delay()
        if not delay:
            return
        if not self._logged:
            self._logged = True
            log.warning("client %s sends many unsolicited replies; the server now reads them slowly", self._client)
        await asyncio.sleep(delay)
