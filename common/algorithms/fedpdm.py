"""Settings of FedPDM, DP-FedPDM and BSDP-FedPDM (FedPDM specification, sections 2.3 to 2.7)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from common.algorithms import Weighting
from common.algorithms.fedavg import LocalTrainingSettings
from common.settings.participation import Sampler, Weighted
from common.settings.uplink import Uplink

Aggregator = Literal["sampled", "stale", "hybrid"]
Dual = Literal["private", "public"]


class FedPDMSettings(LocalTrainingSettings):
    """Federated primal-dual method for non-convex and non-smooth problems (Li et al.)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True
    treats_nonconvex: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = ("solve",)

    name: Literal["fedpdm"] = "fedpdm"
    penalty: PositiveFloat = Field(
        1.0,
        description="penalty of the augmented Lagrangian (rho). A round is worth one step of length about 1 / rho, "
        "however many local steps it has: lower it to go faster; above twice the smoothness it is proven to descend",
    )
    aggregator: Aggregator | None = Field(
        None,
        description="what the new model is made of. sampled: the mean of what this round's clients sent, as in the "
        "paper; stale: the mean of what all clients sent last; hybrid: the mean of this round's local models, "
        "corrected by the mean dual variable of all clients; null: hybrid, or sampled where there is "
        "noise or dual: private",
    )
    dual: Dual | None = Field(
        None,
        description="what a client forms its dual variable from. private: its own local model, as in the paper; "
        "public: what it sent, with noise and without what it did not send, so that the dual variable is no secret; "
        "null: private, or public where there is noise. The hybrid aggregator is always public",
    )
    tolerance: PositiveFloat | None = Field(
        None,
        description="end the local steps once the squared norm of the direction is below this (nu); local_steps or "
        "local_epochs is then the most there may be. null: that many steps, always",
    )
    error_feedback: Literal["none", "ef21"] = Field(
        "none",
        description="ef21: clients send the change of what they sent before, so that what is left out now is sent "
        "later; needs uplink.sparsify",
    )
    first_round: Literal["sampled", "all"] = Field(
        "sampled",
        description="who takes part in round 1: a cohort as in every round, or all clients, as in the paper",
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """The sum of the clients' objectives, unless large clients are drawn more often."""
        return None if isinstance(sampler, Weighted) else "uniform"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.step_size * self.penalty >= 2:
            raise ValueError(
                f"step_size {self.step_size:g} times penalty {self.penalty:g} is {self.step_size * self.penalty:g}, "
                "but local steps diverge from 2 on; lower one of them"
            )
        if self.aggregator == "hybrid" and self.dual == "private":
            raise ValueError(
                "dual: private does not go with aggregator: hybrid, where the server sums up the dual variables from "
                "what it receives; use public, or leave it out"
            )
        if self.error_feedback == "ef21" and self.aggregator not in ("sampled", "stale"):
            raise ValueError(
                "error_feedback: ef21 needs aggregator: stale (or sampled), since the server must know what each "
                "client sent before"
            )
        if self.error_feedback == "ef21" and self.dual == "public":
            raise ValueError("error_feedback: ef21 goes with dual: private, which it exists to keep exact")
        return self

    @property
    def mirrors_initial(self) -> bool:
        """Where the server keeps what clients sent, both begin from the initial model."""
        return self.aggregator == "stale" or self.error_feedback != "none"

    @property
    def prox_penalty(self) -> float:
        """rho, in whose metric the server takes the proximal operator of h."""
        return self.penalty

    def link_problem(self, uplink: Uplink, *, noisy: bool) -> str | None:
        """Error feedback needs something that is left out, and no noise, which it would send after."""
        if self.error_feedback == "none":
            return None
        if uplink.sparsify is None:
            return "error_feedback: ef21 needs uplink.sparsify: there is nothing to send later if all is sent at once"
        if noisy or uplink.clip is not None:
            return "error_feedback: ef21 undoes clipping and accumulates noise; leave it out, or them"
        return None

    @property
    def pull(self) -> float:
        """rho."""
        return self.penalty

    def gain(self, *, noisy: bool) -> Literal[1, 2]:
        """1 where local models are sent, else 2, for y_i = 2 x_i - x0 - lambda_i / rho."""
        return 1 if self.aggregates(noisy=noisy) == "hybrid" else 2

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Of dual variables: public or private."""
        return "public" if self.dual_is_public(noisy=noisy) else "private"

    def aggregates(self, *, noisy: bool) -> Aggregator:
        """Return the aggregator, given whether uploads carry noise."""
        if self.aggregator is not None:
            return self.aggregator
        return "sampled" if noisy or self.dual == "private" else "hybrid"

    def dual_is_public(self, *, noisy: bool) -> bool:
        """Whether dual variables are formed from what was sent, given whether that carries noise."""
        if self.aggregates(noisy=noisy) == "hybrid":
            return True
        return noisy if self.dual is None else self.dual == "public"
