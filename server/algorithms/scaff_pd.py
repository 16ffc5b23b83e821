"""SCAFF-PD, server half.

Yu, Karimireddy, Ma, Jordan, "SCAFF-PD: Communication Efficient Fair and Robust Federated Learning", 2023, as the DRDM
specification describes it (section 2.8); not checked against the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from common.algorithms.drdm import ScaffPDSettings
from common.arrays import Vector
from common.payload import Values
from common.projection import onto, onto_simplex
from server.algorithms.robust import Robust


class ScaffPD(Robust):
    """A dual step with extrapolated losses, then local steps that are corrected towards the weighted gradient."""

    @dataclass
    class State(Robust.State):
        """The server's state.

        Attributes
        ----------
        losses
            q^{r-1}, every client's loss as it last reported it, shape (N,), float64; nan before.
        """

        losses: NDArray[np.float64]

    Settings = ScaffPDSettings
    settings: ScaffPDSettings
    state: State

    def initial_state(self, model: Vector) -> State:
        """No loss is known."""
        return self.State(**self.beginning(model), losses=np.full(len(self.fleet.members), np.nan))

    async def round(self, t: int) -> None:
        """Ask for losses and gradients at x; move lambda; ask for local steps; x <- x + eta_g sum_k lambda_k du_k."""
        x, state = self.model, self.state
        cohort = self.fleet.all() if self.size is None else self.sample()
        gradients = await cohort.ask("gradient", model=x, returns={"loss": float, "gradient": x})
        clients = gradients.cohort.clients
        places = [self.place[client] for client in clients]
        losses = np.array([float(cast(float, gradients[client]["loss"])) for client in clients])
        if self.settings.largest_loss is not None:
            losses = np.clip(losses, 0, self.settings.largest_loss)
        state.weights = self._dual(places, losses)
        state.mean_weights = state.mean_weights + (state.weights - state.mean_weights) / t
        share = self._shares(places)
        mean = np.zeros_like(x)
        for weight, client in zip(share, clients, strict=True):
            mean += x.dtype.type(weight) * cast(Vector, gradients[client]["gradient"])
        weights = dict(zip(clients, share, strict=True))
        step = np.zeros_like(x)
        total = 0.0

        def take(client: str, reply: Values) -> None:
            nonlocal total, step
            step += x.dtype.type(weights[client]) * cast(Vector, reply["change"])
            total += weights[client]

        answered = await gradients.cohort.visit("train", take, mean_gradient=mean, returns={"change": x})
        if total > 0:
            step = step / x.dtype.type(total)
        self.model = onto(self.settings.constraint, x + self.settings.server_step_size * step)
        state.mean_snapshot = state.mean_snapshot + ((self.model - state.mean_snapshot) / t).astype(x.dtype)
        self.visited(answered.clients)

    def _dual(self, places: list[int], losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """argmax over the simplex of <s, lambda> - psi(lambda) - ||lambda - lambda^r||^2 / (2 sigma)."""
        state, sigma, rho = self.state, self.dual_length, self.settings.concavity
        clients = len(state.weights)
        now = np.where(np.isnan(state.losses), 0.0, state.losses)
        now[places] = losses
        before = np.where(np.isnan(state.losses), now, state.losses)
        state.losses = now.copy()
        state.reported = now
        theta = self.settings.extrapolation
        s = (1 + theta) * now - theta * before
        return onto_simplex((state.weights + sigma * (s + rho / clients)) / (1 + sigma * rho))

    def _shares(self, places: list[int]) -> NDArray[np.float64]:
        """lambda of those that answered, renormalised on them; 1 over their number where they have none of it."""
        weights = self.state.weights[places]
        total = weights.sum()
        return weights / total if total > 0 else np.full(len(places), 1 / len(places))
