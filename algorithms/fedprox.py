"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (docs/specifications/feddcd.md, section 2.4).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import FedAvg, LocalTraining, WeightedAverageSettings
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import Values


class FedProxSettings(WeightedAverageSettings):
    """FedAvg whose local steps are pulled towards the global model (Li et al. 2020, Algorithm 2)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True

    name: Literal["fedprox"] = "fedprox"
    proximity: NonNegativeFloat = Field(
        0.01, description="weight mu of (mu/2) ||w - x||^2, which keeps local models w near the global x"
    )

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h: always."""
        return True

    @property
    def pull(self) -> float:
        """mu."""
        return self.proximity


class FedProx(FedAvg):
    """The server averages local models, as in FedAvg; the clients differ."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedProxSettings


class FedProxClient(LocalTraining):
    """Mini-batch gradient descent on ``f_i(w) + (mu/2) ||w - x||^2`` from the global model x; no state."""

    settings: FedProxSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) + mu (w - x) ); return w and n_i."""
        x, w = model, model.copy()
        eta, mu = self.settings.step_size_at(self.round), self.settings.proximity
        for batch in self.batches():
            w -= eta * (self.gradient(w, batch) + mu * (w - x))
        return {"model": self.send(w, around=model).wire, "samples": self.objective.samples}
