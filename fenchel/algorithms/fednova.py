"""FedNova.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020, with plain mini-batch steps as the local solver (a_i is a vector of ones, so that ‖a_i‖_1 = tau_i).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, WeightedAverageSettings
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values


class FedNovaSettings(WeightedAverageSettings):
    """Averages normalised by local steps (Wang et al. 2020)."""

    uses_uplink: ClassVar[bool] = True

    name: Literal["fednova"] = "fednova"


class FedNova(FedAvg):
    """Server half: averages the clients' mean steps, and takes their mean number of steps along the average."""

    Settings = FedNovaSettings
    settings: FedNovaSettings

    async def round(self, t: int) -> None:
        """Set x <- x - tau_eff sum_i p_i (x - w_i) / tau_i, where tau_eff = sum_i p_i tau_i."""
        x = self.model
        trained = await self.trained(steps=int)
        mean = self.received(trained, "model").mean()
        effective = x.dtype.type(trained.mean("steps"))
        self.model = x + effective * (mean - x)


class FedNovaClient(FedAvgClient):
    """Client half: local steps as in FedAvg. The client sends the global model plus the mean of its steps."""

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Start at x; take tau_i steps to w; return x - (x - w) / tau_i, tau_i and n_i."""
        w, steps = self.descended(model)
        mean = model + np.subtract(w, model) / w.dtype.type(max(steps, 1))
        return {"model": self.send(mean, around=model).wire, "steps": steps, "samples": self.objective.samples}
