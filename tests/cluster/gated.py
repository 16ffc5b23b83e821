"""FedAvg that waits at gates: before round t for as long as a file ``t.closed`` lies in a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, FedAvgSettings
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values

NAME = "tests.cluster.gated:Gated"


class GatedSettings(FedAvgSettings):
    """Settings of FedAvg, under another name."""

    name: str  # type: ignore[assignment]
    gates: str
    """The folder."""
    failing: str = ""
    """A client whose work fails in every round after the first, with its data in the text of the error."""


class Gated(FedAvg):
    """Server half."""

    Settings = GatedSettings
    settings: GatedSettings

    async def round(self, t: int) -> None:
        while (Path(self.settings.gates) / f"{t}.closed").exists():
            await asyncio.sleep(0.02)
        await super().round(t)


class GatedClient(FedAvgClient):
    """Client half."""

    settings: GatedSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        if self.client == self.settings.failing and self.round > 1:
            row = np.asarray(self.shard.features[0]).tolist()
            raise ValueError(f"cannot work with {row} of {self.shard.class_names}")
        return super().train(model)
