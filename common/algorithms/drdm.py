"""Settings of DRDM, and of DRFA and SCAFF-PD, with which its paper compares it (DRDM specification, section 2)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from common.algorithms.fedavg import LocalTrainingSettings
from common.settings.constraint import ConstraintSettings, NoConstraint


class RobustSettings(LocalTrainingSettings):
    """For algorithms that minimise the largest of the clients' losses: how the clients' weights lambda move."""

    treats_nonconvex: ClassVar[bool] = True

    local_steps: PositiveInt | None = Field(10, description="mini-batch steps in a round (tau)")
    batches: Literal["passes", "epoch", "independent"] = Field(
        "independent",
        description="how batches are drawn; independent: distinct samples, drawn anew for each step",
    )
    dual_step_size: NonNegativeFloat = Field(
        1e-3,
        description="learning rate of the clients' weights for each local step (gamma). Keep local_steps * "
        "dual_step_size * clients * largest loss below 0.3: above 1 clients that are not asked for their loss lose all "
        "their weight at once",
    )
    dual_batch_size: PositiveInt | None = Field(
        None, description="samples on which a client computes the loss that it reports; null: its whole shard"
    )
    dual_estimator: Literal["plain", "control-variate"] = Field(
        "control-variate",
        description="what is taken for the losses of clients that were not asked: plain: 0, as in the paper; "
        "control-variate: what they last reported, which is quieter",
    )
    largest_loss: PositiveFloat | None = Field(
        None,
        description="losses that clients report are cut off here, since they steer the weights; null: they are not",
    )
    constraint: ConstraintSettings = Field(
        default_factory=lambda: NoConstraint(kind="none"),
        description="the set W that models are projected onto",
    )


class SampledByWeightSettings(RobustSettings):
    """For DRDM and DRFA: who trains is drawn by the clients' weights."""

    sampling: Literal["with-replacement", "without-replacement", "uniform"] = Field(
        "with-replacement",
        description="how the training cohort is drawn from lambda. with-replacement: independent "
        "draws, as the analysis "
        "needs; a client that is drawn more than once trains once and counts more. uniform: without regard to lambda",
    )
    exploration: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of uniform sampling that is mixed into lambda for the draw (epsilon); 0.1 to 0.2 keeps "
        "clients from never being drawn again",
    )


class DRDMSettings(SampledByWeightSettings):
    """Distributionally robust learning with client-drift minimisation (Krouka, Ben Issaid, Bennis)."""

    name: Literal["drdm"] = "drdm"
    regularization: PositiveFloat = Field(
        0.1,
        description="strength of the dynamic regularisation of local steps (mu); small values oscillate for long",
    )
    correction: Literal["uniform", "lambda-table", "lambda-scaled"] = Field(
        "lambda-table",
        description="how the clients' drifts are summed up. uniform: all alike, as in the paper, which leads to the "
        "minimum of the average loss whatever lambda is; lambda-table: by lambda, for which the "
        "server keeps the drift of "
        "every client; lambda-scaled: the clients scale their gradients by lambda, which the server need not keep",
    )
    smallest_scale: PositiveFloat = Field(
        1e-3, description="for lambda-scaled: smallest factor of a client's gradients (omega_min)"
    )

    @model_validator(mode="after")
    def _visits_everybody(self) -> Self:
        if self.correction == "lambda-scaled" and self.sampling != "uniform":
            raise ValueError(
                "correction: lambda-scaled sums up the drifts of all clients, also of those with "
                "little weight, so each "
                "must take part now and then: use sampling: uniform"
            )
        return self


class DRFASettings(SampledByWeightSettings):
    """Distributionally robust federated averaging (Deng, Kamani, Mahdavi 2020), as the DRDM paper describes it."""

    name: Literal["drfa"] = "drfa"


class ScaffPDSettings(RobustSettings):
    """SCAFF-PD (Yu, Karimireddy, Ma, Jordan 2023), as the DRDM specification describes it; not "
    "checked against its paper."""

    name: Literal["scaff-pd"] = "scaff-pd"
    extrapolation: NonNegativeFloat = Field(1.0, description="of the losses in the dual step (theta)")
    server_step_size: PositiveFloat = Field(1.0, description="step size of the server (eta_g)")
    concavity: NonNegativeFloat = Field(
        0.0, description="weight rho of (rho/2) ||lambda - 1/N||^2, which keeps the weights near equal"
    )
