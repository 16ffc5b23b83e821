"""SCAFF-PD.

Yu, Karimireddy, Ma, Jordan, "SCAFF-PD: Communication Efficient Fair and Robust Federated Learning", 2023, as described
in docs/specifications/drdm.md, section 2.8, and not checked against the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining
from fenchel.algorithms.robust.settings import LARGEST_DUAL_STEP, RobustSettings
from fenchel.algorithms.robust.weights import Robust
from fenchel.common.arrays import Vector
from fenchel.common.optim.projection import onto
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort


class ScaffPDSettings(RobustSettings):
    """Loss of the worst clients, primal-dual (Yu et al. 2023)."""

    name: Literal["scaff-pd"] = "scaff-pd"
    dual_step_size: NonNegativeFloat = Field(
        0.01,
        le=LARGEST_DUAL_STEP,
        description="step size of the clients' weights in a round (sigma); keep dual_step_size * clients * loss well "
        "below 1",
    )
    extrapolation: NonNegativeFloat = Field(
        1.0, le=LARGEST_DUAL_STEP, description="extrapolation of the losses in the dual step (theta)"
    )
    server_step_size: PositiveFloat = Field(1.0, description="step size of the server (eta_g)")
    concavity: NonNegativeFloat = Field(
        0.0,
        le=LARGEST_DUAL_STEP,
        description="weight rho of (rho/2) ||lambda - 1/N||^2, which keeps the weights near equal",
    )

    @model_validator(mode="after")
    def _dual_steps_are_taken(self) -> Self:
        for name, unused in (("concavity", 0.0), ("extrapolation", 1.0)):
            value = getattr(self, name)
            if self.dual_step_size == 0 and value != unused:
                raise ValueError(
                    f"{name}: {value:g} changes the steps of lambda, but with dual_step_size: 0 lambda "
                    f"stays constant; use another dual_step_size, or leave {name} out"
                )
        return self


class ScaffPD(Robust):
    """Server half: a dual step with extrapolated losses, then local steps corrected towards the weighted gradient."""

    Settings = ScaffPDSettings
    settings: ScaffPDSettings

    async def round(self, t: int) -> None:
        """Collect L_k and c_k at x; update lambda; have clients take local steps; x <- x + eta_g sum_k lambda_k du_k.

        Both phases go to the same clients. Sums are over the replies, with lambda renormalised on them. A client drawn
        n_k times counts n_k times. If all clients that answered the first phase are lost in it, no step is taken.
        """
        await self.part_with_lost()
        x = self.model
        first = await self.sample().ask("gradient", model=x, returns={"loss": self.loss_expected, "gradient": x})
        await self.part_with_lost()
        reported = self.of_left({client: float(cast(float, reply["loss"])) for client, reply in first.items()})
        if not reported:
            self.visited(())
            return
        self.dual_step(reported)
        cohort = first.cohort.only(reported.__contains__)
        share = self.shares(cohort)
        mean = np.zeros(x.shape)
        for client in cohort:
            mean += share[client] * cast(Vector, first[client]["gradient"])
        steps, answered = await self.summed(
            cohort, "train", share, mean_gradient=mean.astype(x.dtype), returns={"change": x}
        )
        if steps.weight > 0:
            moved = x + self.settings.server_step_size / steps.weight * steps.sum("change")
            self.model = onto(self.settings.constraint, moved.astype(x.dtype))
        self.visited(answered)

    def dual_step(self, reported: Mapping[str, float]) -> None:
        """Set lambda to argmax over the simplex of <s, lambda> - psi(lambda) - ||lambda - lambda^r||^2 / (2 sigma).

        Here s = (1 + theta) q^r - theta q^{r-1}, and psi(lambda) = (rho/2) ||lambda - 1/N||^2.

        Parameters
        ----------
        reported
            Losses by client id. For other clients, q has the last reported loss, or 0. For a client that reports for
            the first time, q^{r-1} = q^r.
        """
        state, theta = self.state, self.settings.extrapolation
        sigma, rho = self.settings.dual_step_size, self.settings.concavity
        before = state.losses.copy()
        self.heard(reported)
        now = np.nan_to_num(state.losses, nan=0.0)
        s = (1 + theta) * now - theta * np.where(np.isnan(before), now, before)
        state.weights = self.onto_simplex((state.weights + sigma * (s + rho / self.clients)) / (1 + sigma * rho))

    def shares(self, cohort: Cohort) -> dict[str, np.float64]:
        """Return n_k lambda_k, normalised on a cohort, by client id; n_k normalised if the cohort has no weight."""
        times = Counter(cohort.draws)
        n = np.array([times[client] for client in cohort], np.float64)
        weights: NDArray[np.float64] = n * self.state.weights[self.places(cohort)]
        if not weights.any():
            weights = n
        return dict(zip(cohort, weights / weights.sum(), strict=True))


class ScaffPDClient(LocalTraining):
    """Client half of SCAFF-PD.

    Between the two phases of a round, it stores the global model and the gradient of the client's objective there.
    """

    @dataclass
    class State:
        """Starting point of local steps.

        Attributes
        ----------
        start
            x^r, shape (d,).
        gradient
            c_k = grad f_k(x^r), shape (d,).
        """

        start: Vector
        gradient: Vector

    settings: ScaffPDSettings

    @answers("gradient")
    def full_gradient(self, model: Vector) -> Values:
        """Store x^r and the gradient of the whole shard there; return the gradient and the loss."""
        self.state.start = model.copy()
        self.state.gradient = self.objective.gradient(model)
        return {"loss": self.objective.loss(model), "gradient": self.state.gradient}

    @answers("train")
    def train(self, mean_gradient: Vector) -> Values:
        """Take J steps u <- Pi_W(u - eta (grad l_k(u) - c_k + cbar)) from x^r; return the displacement u - x^r.

        Parameters
        ----------
        mean_gradient
            cbar, the mean of the gradients weighted by lambda, shape (d,).
        """
        x = self.state.start
        u, eta = x.copy(), self.settings.step_size_at(self.round)
        correction = mean_gradient - self.state.gradient
        for batch in self.batches():
            u = onto(self.settings.constraint, u - eta * (self.gradient(u, batch) + correction))
        return {"change": u - x}
