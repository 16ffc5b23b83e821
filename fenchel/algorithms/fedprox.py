"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (docs/specifications/feddcd.md, section 2.4).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, WeightedAverageSettings
from fenchel.common.settings.algorithm import AlgorithmSettings


class FedProxSettings(WeightedAverageSettings):
    """FedAvg whose local steps are pulled towards the global model (Li et al. 2020, Algorithm 2)."""

    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True

    name: Literal["fedprox"] = "fedprox"
    proximity: NonNegativeFloat = Field(
        0.01, description="weight mu of (mu/2) ||w - x||^2, which keeps local models w near the global x"
    )

    @property
    def pull(self) -> float:
        """mu."""
        return self.proximity


class FedProx(FedAvg):
    """The server averages local models, as in FedAvg; the clients differ."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedProxSettings


class FedProxClient(FedAvgClient):
    """Local steps as in FedAvg, with a pull."""
