"""The naive parallel algorithm, server half.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, appendix C (CODASCA specification, section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.algorithms.npa import NaiveSettings
from common.algorithms.stages import Stage
from common.arrays import Vector
from server.algorithms.staged import Staged


class Naive(Staged):
    """Every round is one step along the mean of the clients' gradients."""

    @dataclass
    class State(Staged.State):
        """The global point, and those of the stage.

        Attributes
        ----------
        iterates
            Sum of the points of the stage, shape (n,), float64.
        """

        iterates: NDArray[np.float64]

    Settings = NaiveSettings
    settings: NaiveSettings
    state: State

    def initial_state(self, model: Vector) -> State:
        """Begin without iterates."""
        fields = self.beginning(model)
        return self.State(**fields, iterates=np.zeros(fields["centre"].size))

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """u <- u - eta (sum_k lambda_k G_k(u) + gamma (v - v_0))."""
        state, u = self.state, self.point
        sums = await self.visit(
            self.sample(),
            "gradient",
            {"gradient": u, "value": float},
            {"point": u, "prior": state.prior},
            everybody=False,
        )
        g = sums.mean("gradient")
        g[:-1] += self.settings.proximal_weight * (u[:-1] - state.centre[:-1])
        self.point = u - stage.step_size * g
        state.value = float(sums.mean("value"))
        state.iterates = self.point + (0.0 if begins else state.iterates)
        if ends and self.settings.output == "average":
            self.point = state.iterates / stage.rounds

    async def finish(self) -> None:
        """Return the mean of the points of the last stage also where the run ended before it did."""
        if self.settings.output == "average" and self.state.done:
            self.point = self.state.iterates / self.state.done
