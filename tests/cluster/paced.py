"""FedAvg whose rounds begin at intervals, so that a run goes on for as long as a test looks at it, and costs little."""

from __future__ import annotations

import asyncio

from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, FedAvgSettings

NAME = "tests.cluster.paced:Paced"


class PacedSettings(FedAvgSettings):
    """Settings of FedAvg, under another name."""

    name: str  # type: ignore[assignment]
    interval: float
    """Seconds before each round."""


class Paced(FedAvg):
    """Server half."""

    Settings = PacedSettings
    settings: PacedSettings

    async def round(self, t: int) -> None:
        await asyncio.sleep(self.settings.interval)
        await super().round(t)


class PacedClient(FedAvgClient):
    """Client half."""
