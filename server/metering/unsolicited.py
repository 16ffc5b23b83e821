"""Rate limits of unsolicited replies: to nothing, to another run, or too late to be remembered."""

from __future__ import annotations

import asyncio
import logging

from fenchel.common.settings.run import Network
from fenchel.server.metering.rate_limit import TokenBucket

log = logging.getLogger("fenchel.server")

_REPLIES_AT_ONCE = 100
_FRAMES_AT_ONCE = 1024

MOST_VALUES = 100
"""Values that an unsolicited reply may have, or as many as were ever asked of the client, if that is more."""


class Strays:
    """Rate limits of the unsolicited replies of one client, over all its streams.

    network: how many replies and frames to take in a second.
    """

    def __init__(self, client: str, network: Network) -> None:
        self._client = client
        self._replies = TokenBucket(network.strays_per_second, _REPLIES_AT_ONCE)
        self._frames = TokenBucket(network.stray_frames_per_second, _FRAMES_AT_ONCE)
        self._logged: set[str] = set()

    async def reply(self) -> None:
        """Count an unsolicited reply; if there were many, leave the next message on the wire for a while."""
        await self._slow(self._replies, "strays_per_second")

    async def frame(self) -> None:
        """Count a frame of an unsolicited reply, likewise."""
        await self._slow(self._frames, "stray_frames_per_second")

    async def _slow(self, pace: TokenBucket, setting: str) -> None:
        delay = pace.delay()
        if not delay:
            return
        if setting not in self._logged:
            self._logged.add(setting)
            log.warning(
                "client %s sends many replies that nobody waits for; they are taken slowly from now on (network.%s)",
                self._client,
                setting,
            )
        await asyncio.sleep(delay)
