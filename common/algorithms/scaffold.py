"""Settings of SCAFFOLD (FedDCD specification, section 2.4)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from common.algorithms.fedavg import WeightedSumSettings


class ScaffoldSettings(WeightedSumSettings):
    """Local steps corrected by control variates (Karimireddy et al. 2020, Algorithm 1)."""

    name: Literal["scaffold"] = "scaffold"
    correction: Literal["option-ii", "option-i", "none"] = Field(
        "option-ii",
        description="a client's new control variate: the mean of the gradients along its local steps (option-ii), "
        "or its gradient at the global model (option-i); none: there are no control variates, as in the linear "
        "baseline published with FedDCD",
    )
    server_step_size: PositiveFloat = Field(
        1.0, description="step size of the server along the mean change of the local models (eta_g)"
    )
