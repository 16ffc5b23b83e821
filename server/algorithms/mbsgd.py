"""Mini-batch SGD, server half (FedDCD specification, section 2.4)."""

from __future__ import annotations

from common.algorithms.mbsgd import MiniBatchSGDSettings
from server.algorithm import Algorithm
from server.fleet import Fleet


def mean_samples(fleet: Fleet) -> float:
    """Return n / N, the samples of a client on average over all clients, lost ones too.

    The weight of a client's objective is its own number of samples divided by this.
    """
    shards = [member.shard for member in fleet.members.values() if member.shard is not None]
    return sum(shard.samples for shard in shards) / len(shards)


class MiniBatchSGD(Algorithm):
    """Clients send gradients at the global model, and the server takes one step along their mean."""

    Settings = MiniBatchSGDSettings
    settings: MiniBatchSGDSettings

    async def round(self, t: int) -> None:
        """Draw I_t; x <- x - eta mean over i in I_t of the mean gradient of client i at x."""
        gradients = await self.sample().reduce(
            "gradient",
            model=self.model,
            mean_samples=mean_samples(self.fleet),
            returns={"gradient": self.model},
        )
        self.model = self.model - self.settings.step_size_at(t) * gradients.mean("gradient")
