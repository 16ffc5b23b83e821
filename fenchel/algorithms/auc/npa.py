"""The naive parallel algorithm.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, appendix C (docs/specifications/codasca.md, section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fenchel.algorithms.auc.staged import Staged, StagedClient
from fenchel.algorithms.auc.staged_settings import StagedSettings
from fenchel.algorithms.auc.stages import Stage, TheorySchedule
from fenchel.algorithms.client_half import answers
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values


class NaiveParallelSettings(StagedSettings):
    """AUC maximisation, a step in each round (Yuan et al. 2021)."""

    name: Literal["npa"] = "npa"
    output: Literal["average", "last"] = Field(
        "average",
        description="start of the next stage. average: mean of the models after each of its rounds; last: model after "
        "the last round",
    )

    @property
    def local_steps(self) -> int:
        """Number of local steps: I = 1."""
        return 1

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number`` of the chosen schedule (practice, or Theorem 1), with one local step per round."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients, local_steps=1)
        return self.schedule.stage(number, self.first_step, 1)

    @model_validator(mode="after")
    def _rounds_have_one_step(self) -> Self:
        if isinstance(self.schedule, TheorySchedule) and self.schedule.window != 1:
            raise ValueError(
                "schedule.window sets the number of local steps in a round, but npa takes one step a round; leave it "
                "out"
            )
        return self


class NaiveParallel(Staged):
    """Server half: each round is one step along the mean of the clients' gradients."""

    @dataclass
    class State(Staged.State):
        """Global point, and sum of the points of the stage.

        Attributes
        ----------
        iterates
            Sum of the points of the stage, shape (n,), float64.
        """

        iterates: NDArray[np.float64]

    Settings = NaiveParallelSettings
    settings: NaiveParallelSettings
    state: State

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the first point."""
        fields = super().beginning(model)
        return fields | {"iterates": np.zeros(fields["centre"].size)}

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """Set u <- u - eta (sum_k lambda_k G_k(u) + gamma (v - v_0)), with the lambda_k normalised on the replies."""
        state, u = self.state, self.point
        sums, _ = await self.visit(
            self.sample(),
            "gradient",
            {"gradient": u, "value": float},
            {"point": u, "prior": state.prior},
            all_clients=False,
        )
        g = sums.mean("gradient")
        g[:-1] += self.settings.proximal_weight * (u[:-1] - state.centre[:-1])
        self.point = u - stage.step_size * g
        state.value = float(sums.mean("value"))
        state.iterates = self.point + (0.0 if begins else state.iterates)
        if ends and self.settings.output == "average":
            self.point = state.iterates / stage.rounds

    async def finish(self) -> None:
        """End the last stage if the run ends within it: average its points."""
        if self.settings.output == "average" and self.state.done:
            self.point = self.state.iterates / self.state.done


class NaiveParallelClient(StagedClient):
    """Client half: one gradient on one batch, without state."""

    @answers("gradient")
    def gradient(self, point: Vector, prior: float) -> Values:
        """Return G at the point, shape (n,), without the proximal term, which the server adds, and the mean of F."""
        (batch,) = self.batches(1)
        value, g = self.objective.saddle_gradient(point, batch, prior)
        return {"gradient": g, "value": value}
