"""Mini-batch SGD (docs/specifications/feddcd.md, section 2.4)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining, WeightedSumSettings
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values
from fenchel.fleet.fleet import Fleet


class MiniBatchSGDSettings(WeightedSumSettings):
    """Mini-batch SGD, one step of the server in each round."""

    name: Literal["mb-sgd"] = "mb-sgd"
    step_size: PositiveFloat = Field(0.1, description="learning rate of the server's step (eta)")


def mean_samples(fleet: Fleet, settings: WeightedSumSettings) -> float:
    """Return n / N, the mean number of samples over all clients, including lost ones, which clients receive.

    The weight p_i of a client is its number of samples divided by this mean. With equal weights clients do not need the
    mean, which discloses the size of others' data, and the result is 1.
    """
    if settings.weighting == "uniform":
        return 1.0
    shards = [member.shard for member in fleet.members.values() if member.shard is not None]
    return sum(shard.samples for shard in shards) / len(shards)


class MiniBatchSGD(Algorithm):
    """Server half: clients send gradients at the global model, and the server takes one step along their mean."""

    Settings = MiniBatchSGDSettings
    settings: MiniBatchSGDSettings

    async def round(self, t: int) -> None:
        """Draw I_t; x <- x - eta mean over i in I_t of the mean gradient of client i at x."""
        gradients = await self.sample().reduce(
            "gradient",
            model=self.model,
            mean_samples=mean_samples(self.fleet, self.settings),
            returns={"gradient": self.model},
        )
        self.model = self.model - self.settings.step_size_at(t) * gradients.mean("gradient")


class MiniBatchSGDClient(LocalTraining):
    """Client half: mean of several stochastic gradients at the global model, without state."""

    settings: MiniBatchSGDSettings

    @answers("gradient")
    def mean_gradient(self, model: Vector, mean_samples: float) -> Values:
        """Return the mean of K stochastic gradients of p_i f_i at x, shape (d,).

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, the mean number of samples of a client, for the weight p_i.
        """
        total, steps = np.zeros_like(model), 0
        for batch in self.batches():
            total += self.gradient(model, batch)
            steps += 1
        p = self.settings.weight(self.objective.samples, mean_samples)
        return {"gradient": p * total / steps}
