"""FedPD, server half.

Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data", IEEE
Transactions on Signal Processing, 2021, Algorithm 1 (FedPDM specification, section 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.algorithms.fedpd import FedPDSettings
from common.errors import SettingsError
from common.randomness import generator
from common.settings.participation import AllClients
from server.algorithm import Algorithm, Conduct
from server.algorithms.mbsgd import mean_samples
from server.cohort import Cohort


class FedPD(Algorithm):
    """Clients solve their augmented Lagrangians; in some rounds their results are averaged, in others they go on."""

    @dataclass
    class State(Algorithm.State):
        """The global model x: the mean of all z_i of the last round with communication.

        Attributes
        ----------
        agreed
            Whether that was the last round, so that the clients must be told the model.
        """

        agreed: bool = True

    Settings = FedPDSettings
    settings: FedPDSettings
    state: State

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        sampler = self.fleet.participation.sampler
        if self.settings.skip and not isinstance(sampler, AllClients):
            raise SettingsError(
                f"{sampler.kind} given, but with algorithm.skip: {self.settings.skip:g} a client that misses a round "
                "misses a model that is not sent again; use kind: all, or skip: 0",
                key="participation.sampler.kind",
            )

    def talks(self, t: int) -> bool:
        """Draw whether round ``t`` ends with communication: with probability 1 - p."""
        return float(generator(self.fleet.seed, "server", t, "communication").random()) >= self.settings.skip

    async def admit(self, cohort: Cohort) -> None:
        """Newcomers begin at the model that everybody knows."""
        await cohort.tell("begin", model=self.model)

    async def round(self, t: int) -> None:
        """With probability 1 - p: x <- mean of all z_i; else each client goes on from its own z_i."""
        known: dict[str, Any] = {"model": self.model} if self.state.agreed else {}
        cohort, share = self.sample(), mean_samples(self.fleet)
        self.state.agreed = self.talks(t)
        if not self.state.agreed:
            await cohort.tell("train", mean_samples=share, talks=False, **known)
            return
        replies = await cohort.reduce(
            "train", mean_samples=share, talks=True, **known, returns={"model": self.model}
        )
        self.model = replies.mean("model")
