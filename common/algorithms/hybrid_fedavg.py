"""Settings of FedAvg for data split by samples and features (HyFDCA specification, sections 2.7 and 4.3)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from common.algorithms import AlgorithmSettings, Weighting
from common.settings.participation import Sampler, Weighted


class LocalDescentSettings(AlgorithmSettings):
    """What the baselines of HyFDCA share: steps on a client's own samples and features, then averages."""

    splits_features: ClassVar[bool] = True
    other_problem: ClassVar[str] = (
        "no such sum where clients hold parts of samples: it averages models feature by feature"
    )
    asks: ClassVar[tuple[str, ...]] = ("tell_features", "train")

    local_steps: PositiveInt = Field(10, description="steps of a client in a round (H)")
    batch_size: PositiveInt | None = Field(1, description="samples a step; null: the whole shard")
    step_scale: PositiveFloat = Field(1.0, description="a of the step size a / (b + sqrt(t)) in round t")
    step_offset: NonNegativeFloat = Field(0.0, description="b of the step size a / (b + sqrt(t)) in round t")
    weighting: Literal["uniform", "samples"] = Field(
        "uniform",
        description="a feature's average over the clients that hold it: with equal weights, or weighted by samples",
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """As the average is weighted, where clients hold whole samples."""
        return None if isinstance(sampler, Weighted) else self.weighting

    def step_size_at(self, t: int) -> float:
        """Step size ``a / (b + sqrt(t))`` of round ``t``, counted from 1."""
        return self.step_scale / (self.step_offset + math.sqrt(t))


class HybridFedAvgSettings(LocalDescentSettings):
    """FedAvg extended to data split by samples and features (Overman et al. 2022)."""

    stateless: ClassVar[bool] = True

    name: Literal["hybrid-fedavg"] = "hybrid-fedavg"
