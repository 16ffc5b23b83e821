"""FedOpt: FedAdam, FedYogi and FedAdagrad.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, WeightedAverageSettings
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.fleet.cohort import Cohort

_Decay = Annotated[float, Field(ge=0, lt=1)]


class FedOptSettings(WeightedAverageSettings):
    """Adaptive optimiser on the server (Reddi et al. 2021)."""

    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True

    name: Literal["fedopt"] = "fedopt"
    optimizer: Literal["adam", "yogi", "adagrad"] = Field(
        "adam", description="adaptive rule of the server's steps: FedAdam, FedYogi or FedAdagrad"
    )
    server_step_size: PositiveFloat = Field(0.1, description="step size of the server (eta)")
    betas: tuple[_Decay, _Decay] = Field(
        (0.9, 0.99),
        description="decay of the mean change, and of the mean squared change; adagrad uses the first alone",
    )
    adaptivity: PositiveFloat = Field(
        1e-3,
        description="tau, added to the root of the mean squared change; larger values make the steps less adaptive",
    )


class FedOpt(FedAvg):
    """Server half: a cohort trains locally, and the mean of its changes is the server's negative gradient."""

    @dataclass
    class State(Algorithm.State):
        """Global model x_t, and moments of its changes.

        Attributes
        ----------
        momentum
            m_t, decaying mean of changes, shape (d,).
        squares
            v_t, decaying mean of squared changes, or their sum for adagrad, shape (d,).
        """

        momentum: Vector
        squares: Vector

    Settings = FedOptSettings
    settings: FedOptSettings
    state: State

    def initial_state(self, model: Vector) -> State:
        """Return m_0 = 0 and v_0 = tau^2."""
        return self.State(model, np.zeros_like(model), np.full_like(model, self.settings.adaptivity**2))

    async def admit(self, cohort: Cohort) -> None:
        """Do nothing, as clients have no state."""

    async def round(self, t: int) -> None:
        """Update m and v by Delta, the mean of the x_i - x, and set x <- x + eta m / (sqrt(v) + tau)."""
        x, state, (beta_1, beta_2) = self.model, self.state, self.settings.betas
        change = self.received(await self.trained(), "model").mean() - x
        square = change**2
        state.momentum = beta_1 * state.momentum + (1 - beta_1) * change
        match self.settings.optimizer:
            case "adagrad":
                state.squares = state.squares + square
            case "yogi":
                state.squares = state.squares - (1 - beta_2) * square * np.sign(state.squares - square)
            case "adam":
                state.squares = beta_2 * state.squares + (1 - beta_2) * square
        step = state.momentum / (np.sqrt(state.squares) + self.settings.adaptivity)
        self.model = x + self.settings.server_step_size * step


class FedOptClient(FedAvgClient):
    """Client half: local steps as in FedAvg."""
