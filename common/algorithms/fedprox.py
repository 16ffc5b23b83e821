"""Settings of FedProx (FedDCD specification, section 2.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from common.algorithms.fedavg import WeightedAverageSettings


class FedProxSettings(WeightedAverageSettings):
    """FedAvg whose local steps are pulled towards the global model (Li et al. 2020, Algorithm 2)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True
    stateless: ClassVar[bool] = True

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
