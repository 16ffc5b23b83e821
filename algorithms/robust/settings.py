"""Settings of DRDM, and of DRFA and SCAFF-PD, with which its paper compares it (DRDM specification, section 2)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.common.algorithm_registry import Weighting
from fenchel.common.settings.constraint import ConstraintSettings, NoConstraint
from fenchel.common.settings.participation import Sampler
from fenchel.common.wire.schema import ABSURD

LARGEST_DUAL_STEP = 1e12
"""Beyond this a step of the weights along any loss that means something is a jump to a corner of their simplex."""


class RobustSettings(LocalTrainingSettings):
    """For algorithms that minimise the largest of the clients' losses.

    Each client has a weight lambda_i; they are at least 0 and add up to 1.
    """

    treats_nonconvex: ClassVar[bool] = True
    other_problem: ClassVar[str] = "the largest of the clients' losses"

    local_steps: PositiveInt = Field(
        10, description="mini-batch steps in a round (tau), the same number for every client"
    )
    batches: Literal["passes", "epoch", "independent"] = Field(
        "independent",
        description="how batches are drawn, as for FedAvg; independent: distinct samples, drawn anew for each step",
    )
    initial_weights: Literal["uniform", "samples"] = Field(
        "uniform",
        description="the clients' weights before the first round: 1/N, or d_i/d, their share of the samples",
    )
    largest_loss: PositiveFloat | None = Field(
        None,
        le=ABSURD,
        description="losses that clients report are cut off to [0, largest_loss], since they steer the weights; "
        "null: they are not",
    )
    constraint: ConstraintSettings = Field(
        default_factory=lambda: NoConstraint(kind="none"),
        description="the set W that models are projected onto",
    )


class SampledByWeightSettings(RobustSettings):
    """For DRDM and DRFA: who trains is drawn by weight, and the weights move by losses at a snapshot of the model."""

    asks: ClassVar[tuple[str, ...]] = ("train", "loss")

    sampling: Literal["with-replacement", "without-replacement", "uniform"] = Field(
        "with-replacement",
        description="how the training cohort is drawn from lambda; how many clients, participation.sampler says (all: "
        "as many as there are). with-replacement: independent draws, as the analysis needs; a client that is drawn "
        "more than once trains once and counts more. without-replacement: one draw after the other, from those that "
        "are left. uniform: without regard to lambda",
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
        description="what is taken for the losses of clients that were not asked. plain: 0, as in the paper; "
        "control-variate: what they last reported, which is quieter; where everybody is asked, about those that do not "
        "answer",
    )
    first_losses: Literal["zero", "asked"] = Field(
        "zero",
        description="what the control variate takes for the loss of a client that was never asked: 0, or its loss at "
        "the first model, for which all clients are asked at the start",
    )
    returned: Literal["last", "average"] = Field(
        "last",
        description="the final model. last: that of the last round, as in the paper; average: the mean of the "
        "snapshots of all rounds, which the paper's theorem is about",
    )

    @property
    def epsilon(self) -> float:
        """Share of uniform sampling in the draw of the training cohort."""
        return self.exploration or 0.0

    @model_validator(mode="after")
    def _explores_by_weight(self) -> Self:
        if self.exploration and self.sampling == "uniform":
            raise ValueError(
                f"exploration: {self.exploration:g} mixes uniform draws into those by lambda, and with sampling: "
                "uniform there are none by lambda; leave exploration out, or use sampling: with-replacement"
            )
        return self

    @model_validator(mode="after")
    def _losses_move_weights(self) -> Self:
        if self.dual_batch_size is not None and self.dual_step_size == 0:
            raise ValueError(
                f"dual_batch_size: {self.dual_batch_size} is for the losses that move lambda, and with "
                "dual_step_size: 0 it does not move; leave dual_batch_size out, or use another dual_step_size"
            )
        return self

    @model_validator(mode="after")
    def _first_losses_are_used(self) -> Self:
        if self.first_losses == "asked" and self.dual_estimator == "plain":
            raise ValueError(
                "first_losses: asked is what the control variate begins with, and dual_estimator: plain has none; use "
                "dual_estimator: control-variate, or leave first_losses out"
            )
        if self.first_losses == "asked" and self.dual_step_size == 0:
            raise ValueError(
                "first_losses: asked is for the first steps of lambda, and with dual_step_size: 0 it takes none; use "
                "another dual_step_size, or leave first_losses out"
            )
        return self


class DRDMSettings(SampledByWeightSettings):
    """Distributionally robust learning with client-drift minimisation (Krouka, Ben Issaid, Bennis)."""

    name: Literal["drdm"] = "drdm"
    exploration: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of uniform sampling that is mixed into lambda for the draw (epsilon); 0 in the paper, where "
        "clients without weight are never drawn again; not with sampling: uniform. null: 0.1",
    )
    dual_estimator: Literal["plain", "control-variate"] = Field(
        "control-variate",
        description="what is taken for the losses of clients that were not asked. plain: 0, as in the paper; "
        "control-variate: what they last reported, which is quieter; where everybody is asked, about those that do not "
        "answer",
    )
    regularization: NonNegativeFloat = Field(
        0.1,
        description="strength of the dynamic regularisation of local steps (mu); small values oscillate for long, and "
        "0 is for correction: none only",
    )
    correction: Literal["lambda-table", "lambda-scaled", "uniform", "none"] = Field(
        "lambda-table",
        description="how the clients' drifts are summed up. lambda-table: by lambda, for which the server keeps the "
        "drift of every client. lambda-scaled: the clients scale their gradients by lambda, and the server keeps one "
        "vector. uniform: all alike, as in the paper, which leads to the minimum of the average loss, whatever lambda "
        "is. none: not at all, which is DRFA with a proximal term",
    )
    smallest_scale: PositiveFloat | None = Field(
        None,
        description="with correction: lambda-scaled, and only there: smallest factor of a client's gradients "
        "(omega_min). null: 0.001",
    )

    @property
    def epsilon(self) -> float:
        """Share of uniform sampling in the draw of the training cohort."""
        return 0.1 if self.exploration is None else self.exploration

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """With drifts that are summed up all alike, the average of the clients' losses; else the largest."""
        return "uniform" if self.correction == "uniform" else None

    @property
    def omega_min(self) -> float:
        """Smallest factor of a client's gradients, with ``lambda-scaled``."""
        return 1e-3 if self.smallest_scale is None else self.smallest_scale

    @model_validator(mode="after")
    def _scales(self) -> Self:
        if self.smallest_scale is not None and self.correction != "lambda-scaled":
            raise ValueError(
                f"smallest_scale: {self.smallest_scale:g} is a limit of how gradients are scaled, and with correction: "
                f"{self.correction} they are not; leave smallest_scale out, or use correction: lambda-scaled"
            )
        return self

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.regularization == 0 and self.correction != "none":
            raise ValueError(
                f"regularization: 0 given, but drifts enter the local steps times regularization, so that with "
                f"correction: {self.correction} they would correct nothing and still push the model further in every "
                "round; use a positive regularization, or correction: none"
            )
        return self

    @model_validator(mode="after")
    def _visits_everybody(self) -> Self:
        if self.correction == "lambda-scaled" and self.sampling != "uniform":
            raise ValueError(
                f"correction: lambda-scaled sums up the drifts of all clients, also of those with little weight, so "
                f"each must take part now and then, but with sampling: {self.sampling} they may never; use sampling: "
                "uniform, or correction: lambda-table"
            )
        return self

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        if self.step_size * self.regularization >= 2:
            raise ValueError(
                f"step_size {self.step_size:g} times regularization {self.regularization:g} is "
                f"{self.step_size * self.regularization:g}, but local steps diverge from 2 on; lower one of them"
            )
        return self


class DRFASettings(SampledByWeightSettings):
    """Distributionally robust federated averaging (Deng, Kamani, Mahdavi 2020), as the DRDM paper describes it."""

    stateless: ClassVar[bool] = True

    name: Literal["drfa"] = "drfa"


class ScaffPDSettings(RobustSettings):
    """SCAFF-PD (Yu, Karimireddy, Ma, Jordan 2023), as the DRDM specification describes it (section 2.8)."""

    asks: ClassVar[tuple[str, ...]] = ("gradient", "train")

    name: Literal["scaff-pd"] = "scaff-pd"
    dual_step_size: NonNegativeFloat = Field(
        0.01,
        le=LARGEST_DUAL_STEP,
        description="step size of the clients' weights in a round (sigma); keep dual_step_size * clients * loss well "
        "below 1",
    )
    extrapolation: NonNegativeFloat = Field(
        1.0, le=LARGEST_DUAL_STEP, description="by how much the dual step runs ahead of the losses (theta)"
    )
    server_step_size: PositiveFloat = Field(1.0, description="step size of the server (eta_g)")
    concavity: NonNegativeFloat = Field(
        0.0,
        le=LARGEST_DUAL_STEP,
        description="weight rho of (rho/2) ||lambda - 1/N||^2, which keeps the weights near equal",
    )

    @model_validator(mode="after")
    def _concavity_is_used(self) -> Self:
        if self.concavity > 0 and self.dual_step_size == 0:
            raise ValueError(
                f"concavity: {self.concavity:g} pulls at the steps of lambda, and with dual_step_size: 0 it takes "
                "none; use another dual_step_size, or leave concavity out"
            )
        return self
