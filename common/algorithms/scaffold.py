"""Settings of SCAFFOLD (FedDCD specification, section 2.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from common.algorithms.fedavg import WeightedSumSettings
from common.settings.uplink import Uplink


class ScaffoldSettings(WeightedSumSettings):
    """Local steps corrected by control variates (Karimireddy et al. 2020, Algorithm 1)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True

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

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h: always."""
        return True

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Control variates: formed from what was sent, where that is changed on its way."""
        return "public"

    def link_problem(self, uplink: Uplink, *, noisy: bool) -> str | None:
        """Both sides form control variates from what was sent, for which both must know Q."""
        if uplink.is_plain and not noisy:
            return None
        if self.correction == "option-i":
            return (
                "correction: option-i needs a second vector from each client; use option-ii, whose control variates "
                "follow from what is sent"
            )
        if self.local_steps is None:
            return "the server must know the number of local steps: give local_steps in place of local_epochs"
        if noisy and self.weighting == "samples":
            return (
                "weighting: samples makes the gradients of large clients longer than the bound that their noise "
                "is made for; use weighting: uniform"
            )
        return None
