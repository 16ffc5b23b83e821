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
    """FedAvg with a local proximal term (Li et al. 2020)."""

    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True

    name: Literal["fedprox"] = "fedprox"
    proximity: NonNegativeFloat = Field(
        0.01, description="weight mu of (mu/2) ||w - x||^2, which keeps local models w near the global x"
    )

    @property
    def pull(self) -> float:
        """Weight of the proximal term: mu."""
        return self.proximity


class FedProx(FedAvg):
    """Server half, the same as that of FedAvg."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedProxSettings


class FedProxClient(FedAvgClient):
    """Client half: local steps as in FedAvg, with the proximal term."""
