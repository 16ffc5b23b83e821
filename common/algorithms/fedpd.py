"""Settings of FedPD (FedPDM specification, section 2.8)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from common.algorithms.fedavg import WeightedSumSettings


class FedPDSettings(WeightedSumSettings):
    """A primal-dual method that leaves out communication at random (Zhang, Hong, Dhople, Yin, Liu 2021)."""

    treats_regularizer: ClassVar[bool] = True

    name: Literal["fedpd"] = "fedpd"
    proximal_step: PositiveFloat = Field(
        1.0,
        description="eta of the paper: local models are tied to the global one by ||w - x||^2 / (2 eta), and a round "
        "is worth one step of length about eta",
    )
    skip: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a round ends without communication (p); above 0, all clients must take part",
    )

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        if self.step_size >= 2 * self.proximal_step:
            raise ValueError(
                f"step_size {self.step_size:g} given, but local steps diverge from twice the proximal_step on, "
                f"{2 * self.proximal_step:g}; lower it, or raise proximal_step"
            )
        return self

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h: always."""
        return True
