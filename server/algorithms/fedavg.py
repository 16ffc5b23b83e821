"""Federated averaging, server half.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from common.algorithms import AlgorithmSettings
from common.algorithms.fedavg import FedAvgSettings, WeightedAverageSettings
from server.algorithm import Algorithm


class FedAvg(Algorithm):
    """Each round a cohort trains locally from the global model, and the results are averaged."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedAvgSettings
    settings: WeightedAverageSettings

    async def round(self, t: int) -> None:
        """Draw S_t; w_{t+1} = sum over k in S_t of n_k / n * ClientUpdate(k, w_t)."""
        cohort = self.sample()
        trained = await cohort.reduce(
            "train",
            model=self.downlink.wire(self.model, t),
            returns={"model": self.uplink.expected(self.model), "samples": int},
            weight="samples" if self.settings.weighting == "samples" else None,
            dtype=self.model.dtype,
        )
        mean = self.uplink.mean(trained, "model", self.model, t)
        self.model = self.downlink.kept(mean, t + 1)
