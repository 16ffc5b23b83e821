"""Settings of mini-batch SGD (FedDCD specification, section 2.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from common.algorithms.fedavg import WeightedSumSettings


class MiniBatchSGDSettings(WeightedSumSettings):
    """Gradient descent on the server, with mini-batches that all lie at the global model."""

    treats_regularizer: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = ("gradient",)
    stateless: ClassVar[bool] = True

    name: Literal["mb-sgd"] = "mb-sgd"
    step_size: PositiveFloat = Field(0.1, description="learning rate of the server's step (eta)")

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h: always."""
        return True
