"""Settings of DRDM, and of its baselines DRFA and SCAFF-PD.

Source: docs/specifications/drdm.md, section 2.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.common.settings.constraint import ConstraintSettings, NoConstraint
from fenchel.common.wire.schema import ABSURD

LARGEST_DUAL_STEP = 1e12
"""Bound on dual step sizes, above which a step along any realistic loss jumps to a corner of the simplex."""


class RobustSettings(LocalTrainingSettings):
    """Settings of algorithms that minimise the largest of the clients' losses.

    Each client has a weight lambda_i >= 0, with sum 1.
    """

    other_problem: ClassVar[str] = "the largest of the clients' losses"

    local_steps: PositiveInt = Field(
        10, description="mini-batch steps in a round (tau), the same number for every client"
    )
    batches: Literal["passes", "epoch", "independent"] = Field(
        "independent",
        description="sampling of batches, as for FedAvg; independent: distinct samples, drawn anew for each step",
    )
    largest_loss: PositiveFloat | None = Field(
        None,
        le=ABSURD,
        description="bound on reported losses, which steer the weights: they are clipped to [0, largest_loss]; null: "
        "no bound",
    )
    constraint: ConstraintSettings = Field(
        default_factory=lambda: NoConstraint(kind="none"), description="set W onto which models are projected"
    )


class SampledByWeightSettings(RobustSettings):
    """Settings of DRDM and DRFA: cohorts drawn by weight, and updates of the weights by losses at a snapshot."""

    sampling: Literal["with-replacement", "without-replacement", "uniform"] = Field(
        "with-replacement",
        description="draw of the training cohort from lambda; participation.sampler gives the number of clients (all: "
        "as many as there are). with-replacement: independent draws, as the analysis needs, where a client that is "
        "drawn more than once trains once and counts more; without-replacement: one draw after the other, from the "
        "remaining clients; uniform: independent of lambda",
    )
    exploration: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of uniform sampling that is mixed into lambda for the draw (epsilon); 0.1 to 0.2 keeps "
        "clients from never being drawn again; not with sampling: uniform. null: 0",
    )
    dual_step_size: NonNegativeFloat | None = Field(
        None,
        le=LARGEST_DUAL_STEP,
        description="learning rate of the weights for each local step (gamma); a round moves them by local_steps times "
        "as much. Above 1 / (local_steps * clients * loss), clients that are not asked for their loss lose all of "
        "their weight at once. null: 0.3 of that, with the mean of the clients' losses at the first model, for which "
        "all are asked at the start; each counts as 1000 times their median at most",
    )
    dual_batch_size: PositiveInt | None = Field(
        None, description="samples on which a client computes the loss that it reports; null: its whole shard"
    )
    dual_estimator: Literal["plain", "control-variate"] = Field(
        "plain",
        description="estimate of the losses of clients that did not report any. plain: 0, as in the paper; "
        "control-variate: the last reported loss, which has less variance",
    )
    output: Literal["last", "average"] = Field(
        "last",
        description="the final model. last: model of the last round, as in the paper; average: mean of the snapshots "
        "of all rounds, to which the paper's theorem applies",
    )

    @property
    def epsilon(self) -> float:
        """Share of uniform sampling in the draw of the training cohort."""
        return self.exploration or 0.0

    @model_validator(mode="after")
    def _explores_by_weight(self) -> Self:
        if self.exploration and self.sampling == "uniform":
            raise ValueError(
                f"exploration: {self.exploration:g} mixes uniform draws into draws by lambda, but with sampling: "
                "uniform none are by lambda; leave exploration out, or use sampling: with-replacement"
            )
        return self

    @model_validator(mode="after")
    def _losses_move_weights(self) -> Self:
        if self.dual_batch_size is not None and self.dual_step_size == 0:
            raise ValueError(
                f"dual_batch_size: {self.dual_batch_size} is for the losses that update lambda, but with "
                "dual_step_size: 0 lambda stays constant; leave dual_batch_size out, or use another "
                "dual_step_size"
            )
        return self
