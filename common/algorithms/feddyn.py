"""Settings of FedDyn (FedPDM specification, section 2.8)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from common.algorithms.fedavg import WeightedSumSettings
from common.settings.uplink import Uplink


class FedDynSettings(WeightedSumSettings):
    """Local objectives that are bent anew in every round, so that they agree (Acar et al. 2021, Algorithm 1)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True

    name: Literal["feddyn"] = "feddyn"
    alpha: PositiveFloat = Field(
        0.1,
        description="weight of (alpha/2) ||w - x||^2, which keeps local models w near the global x; a round is worth "
        "one step of length about 1 / alpha",
    )
    regularizer_step: Literal["subgradient", "server-prox"] = Field(
        "subgradient",
        description="what is done about h (objective.regularizer). subgradient: clients step along a subgradient; "
        "server-prox: the server takes the proximal operator of h / alpha",
    )

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        if self.step_size * self.alpha >= 2:
            raise ValueError(
                f"step_size {self.step_size:g} times alpha {self.alpha:g} is {self.step_size * self.alpha:g}, but "
                "local steps diverge from 2 on; lower one of them"
            )
        return self

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h."""
        return self.regularizer_step == "subgradient"

    @property
    def prox_penalty(self) -> float | None:
        """alpha, where the server takes the proximal operator."""
        return self.alpha if self.regularizer_step == "server-prox" else None

    @property
    def pull(self) -> float:
        """alpha."""
        return self.alpha

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """lambda_i is formed from what was sent."""
        return "public"

    def link_problem(self, uplink: Uplink, *, noisy: bool) -> str | None:
        """Noise is made for gradients of a known length, which the weights p_i would change."""
        if noisy and self.weighting == "samples":
            return (
                "weighting: samples makes the gradients of large clients longer than the bound that their noise "
                "is made for; use weighting: uniform"
            )
        return None
