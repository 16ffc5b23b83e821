"""FedDyn.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR
2021, Algorithm 1 (docs/specifications/fedpdm.md, section 2.8). With the proximal operator it is FedPDM's hybrid
aggregation (section 2.7, V2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining, WeightedSumSettings
from fenchel.algorithms.mb_sgd import mean_samples
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort


class FedDynSettings(WeightedSumSettings):
    """Dynamically regularised local losses (Acar et al. 2021)."""

    uses_uplink: ClassVar[bool] = True

    name: Literal["feddyn"] = "feddyn"
    alpha: PositiveFloat = Field(
        0.1,
        description="weight of (alpha/2) ||w - x||^2, which keeps local models w near the global x; a round is worth "
        "one step of length about 1 / alpha",
    )
    regularizer_step: Literal["subgradient", "server-prox"] = Field(
        "subgradient",
        description="treatment of h (objective.regularizer). subgradient: clients step along a subgradient; "
        "server-prox: the server applies the proximal operator of h / alpha",
    )

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        self.check_steps("alpha")
        return self

    @property
    def prox_penalty(self) -> float | None:
        """Penalty of the proximal operator: alpha, if the server takes it."""
        return self.alpha if self.regularizer_step == "server-prox" else None

    @property
    def pull(self) -> float:
        """Weight of the proximal term: alpha."""
        return self.alpha

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Return ``public``, as lambda_i follows from uploads."""
        return "public"


class FedDyn(Algorithm):
    """Server half: clients minimise regularised objectives; the server corrects the mean by the mean linear term."""

    @dataclass
    class State(Algorithm.State):
        """Global model x, and the correction.

        Attributes
        ----------
        mean_dual
            h of the paper, shape (d,): the mean of lambda_i over all clients after each round.
        """

        mean_dual: Vector

    Settings = FedDynSettings
    settings: FedDynSettings
    state: State

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.regularizer = context.objective.regularizer

    def initial_state(self, model: Vector) -> State:
        """Return the state with h = 0, as the clients begin with lambda_i = 0."""
        return self.State(model, np.zeros_like(model))

    async def admit(self, cohort: Cohort) -> None:
        """Multiply h by N_old / N_new, so that it stays the mean of all lambda_i: those of late joiners are 0."""
        clients = len(self.fleet.members)
        self.state.mean_dual = self.state.mean_dual * ((clients - len(cohort)) / clients)

    async def round(self, t: int) -> None:
        """Draw S_t; h <- h - (alpha/N) sum over S_t of (x_i - x); x <- mean over S_t of x_i, minus h / alpha.

        A client's new lambda_i counts if and only if its reply did, so that h stays the mean of all lambda_i.
        """
        x, alpha, clients = self.model, self.settings.alpha, len(self.fleet.members)
        replies = await self.sample().reduce(
            "train",
            model=self.broadcast,
            mean_samples=mean_samples(self.fleet, self.settings),
            returns={"model": self.upload},
            dtype=x.dtype,
        )
        sent = self.received(replies, "model")
        self.state.mean_dual = self.state.mean_dual - alpha / clients * (sent.total - sent.coverage * x)
        new = np.where(sent.covered, sent.mean() - self.state.mean_dual / alpha, 0)
        if self.settings.regularizer_step == "server-prox":
            new = self.regularizer.prox(new, alpha)
        self.model = sent.held(new).astype(x.dtype, copy=False)


class FedDynClient(LocalTraining):
    """Client half: mini-batch descent on ``p_i f_i(w) - <lambda_i, w> + (alpha/2) ||w - x||^2`` from the global x."""

    @dataclass
    class State:
        """Linear term of the local objective.

        Attributes
        ----------
        dual
            lambda_i, shape (d,): estimate of the gradient of p_i f_i at the client's last local model; initially zeros.
        """

        dual: Vector

    settings: FedDynSettings

    @answers("train")
    def train(self, model: Vector, mean_samples: float) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) - lambda_i + alpha (w - x) ); renew lambda_i; return w.

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, the mean number of samples of a client, for the weight p_i.
        """
        x, w, alpha = model, model.copy(), self.settings.alpha
        eta = self.settings.step_size_at(self.round)
        p = self.settings.weight(self.objective.samples, mean_samples)
        for batch in self.batches():
            w -= eta * (p * self.gradient(w, batch) - self.state.dual + alpha * (w - x))
        sent = self.send(w, around=x)
        self.state.dual[sent.coordinates] -= alpha * (sent.values - x[sent.coordinates])
        return {"model": sent.wire}
