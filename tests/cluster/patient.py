"""FedDCD that takes its time until a fourth client is there, so that a test can start one in the middle of a run."""

from __future__ import annotations

import asyncio

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.feddcd.feddcd import FedDCD, FedDCDClient, FedDCDSettings
from fenchel.common.errors import PayloadError
from fenchel.common.wire.values import Values

NAME = "tests.cluster.patient:Patient"


class PatientSettings(FedDCDSettings):
    """Settings of FedDCD, under another name."""

    name: str  # type: ignore[assignment]
    failing: str = ""
    """A client that cannot describe itself."""


class Patient(FedDCD):
    """Server half."""

    Settings = PatientSettings  # type: ignore[assignment]

    async def round(self, t: int) -> None:
        if t > 5 and len(self.fleet.members) < 4:
            await asyncio.sleep(0.1)
        await super().round(t)


class PatientClient(FedDCDClient):
    """Client half."""

    settings: PatientSettings

    @answers("describe")
    def describe(self) -> Values:
        if self.client == self.settings.failing:
            raise PayloadError("its disk is full")
        return super().describe()
