"""An algorithm that computes nothing: what remains is what a round costs.

Each client returns the model that it got; the server takes the first reply as the new model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import Values


class EchoSettings(AlgorithmSettings):
    """Settings of the echo."""

    reduce: bool = False


class Echo(Algorithm):
    """Sends the model to everybody and receives it back."""

    Settings = EchoSettings
    settings: EchoSettings

    async def round(self, t: int) -> None:
        """Ask everybody for the model."""
        cohort = self.fleet.all()
        if self.settings.reduce:
            reduced = await cohort.reduce("echo", model=self.model, returns={"model": self.model})
            self.model = reduced.mean("model")
        else:
            replies = await cohort.ask("echo", model=self.model, returns={"model": self.model})
            assert len(replies) == len(cohort)


class EchoClient(ClientAlgorithm):
    """Returns what it gets."""

    @answers("echo")
    def echo(self, model: Vector) -> Values:
        """Return the model."""
        return {"model": model}


class Vacuum(Objective):
    """An objective of any dimension without any computation."""

    def __init__(self, *, shard: Shard, l2: float, dtype: Any, dimension: int) -> None:
        super().__init__(dimension=dimension, samples=shard.samples, dtype=dtype)

    def initial(self, seed: int) -> Vector:
        """Return numbers that do not compress, shape (dimension,)."""
        return np.random.default_rng(seed).random(self.dimension, np.float32).astype(self.dtype, copy=False)

    def loss(self, w: Vector) -> float:
        """Return 0."""
        return 0.0

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return zeros."""
        return np.zeros_like(w)

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return nothing learnt."""
        return Metrics(0.0, 0, self.samples)
