"""CODA+.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 1 and 2; Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed
Stochastic AUC Maximization with Deep Neural Networks", ICML 2020 (docs/specifications/codasca.md, sections 2.1 and
2.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fenchel.algorithms.auc.staged import Staged, StagedClient
from fenchel.algorithms.auc.staged_settings import WindowedSettings, check_all_take_part
from fenchel.algorithms.auc.stages import Stage, TheorySchedule
from fenchel.algorithms.client_half import answers
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.participation import Participation
from fenchel.common.wire.values import Values


class AveragingSettings(WindowedSettings):
    """Settings common to CODA+ and CODA."""

    output: Literal["average", "last"] = Field(
        "average",
        description="start of the next stage. average: mean of all local iterates of all clients, as in the paper; "
        "last: model after the last round",
    )

    @property
    def averages(self) -> bool:
        """True if a stage ends with the mean of all local iterates."""
        return self.output == "average"

    def check_participation(self, participation: Participation) -> None:
        """Reject partial participation with ``output: average``."""
        if self.averages:
            check_all_take_part(participation, "output: average is the mean over all local iterates")

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 1."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients)
        return self.schedule.stage(number, self.first_step, self.round_steps)


class CodaPlusSettings(AveragingSettings):
    """AUC maximisation with averaging, CODA+ (Yuan et al. 2021)."""

    name: Literal["coda-plus"] = "coda-plus"


class CodaPlus(Staged):
    """Server half: clients take local steps towards a saddle point, and the server averages the results."""

    Settings: ClassVar[type[AlgorithmSettings]] = CodaPlusSettings
    settings: AveragingSettings

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """Set u <- sum_k lambda_k u^k, or after the last round of a stage the mean of all its local iterates."""
        u = self.point
        returns = {"change": u, "value": float} | ({"average": u} if ends and self.settings.averages else {})
        values = {
            "prior": self.state.prior,
            "steps": stage.local_steps,
            "step_size": stage.step_size,
            "begins": begins,
            "ends": ends,
            "point": u,
        }
        sums, answered = await self.visit(self.sample(), "train", returns, values, all_clients=self.settings.averages)
        if begins:
            await self.tell_others(answered, u)
        self.state.value = float(sums.mean("value"))
        self.point = sums.mean("average") if ends and self.settings.averages else u + sums.mean("change")
        if ends:
            await self.renew_dual()

    async def renew_dual(self) -> None:
        """Do nothing, as CODA+ keeps alpha between stages."""

    async def finish(self) -> None:
        """End the last stage if the run ends within it: average its iterates, and recompute alpha."""
        if not self.state.done:
            return
        if self.settings.averages:
            sums, _ = await self.visit(self.fleet.all(), "average", {"average": self.point}, {}, all_clients=True)
            self.point = sums.mean("average")
        await self.renew_dual()


class CodaPlusClient(StagedClient):
    """Client half: local descent and ascent from the averaged point."""

    @dataclass
    class State:
        """State of the client half within a stage.

        Attributes
        ----------
        centre
            v_0, the initial point of the stage, shape (n,); its last entry is not used.
        iterates
            Sum of the local iterates of the stage, shape (n,), float64; shape (0,) if the average is not used.
        counted
            Number of iterates in the sum.
        """

        centre: Vector
        iterates: Vector
        counted: int

    settings: AveragingSettings
    state: State

    def initial_state(self) -> State:
        """Return the state before the first iterate."""
        wanted = self.length if self.settings.averages else 0
        return self.State(self.zeros(), np.zeros(wanted), 0)

    @answers("begin_stage")
    def begin_stage(self, point: Vector) -> None:
        """Set v_0 to the point, and clear the sum of iterates.

        The server sends this phase to clients that missed the first round of the stage.
        """
        self.state.centre = np.array(point)
        self.state.iterates[:] = 0
        self.state.counted = 0

    @answers("train")
    def train(self, prior: float, steps: int, step_size: float, begins: bool, ends: bool, point: Vector) -> Values:
        """Start at u = u_{r-1}; take I steps u <- u - eta g(u), which descend in v and ascend in alpha.

        Parameters
        ----------
        begins, ends
            Whether this is the first and the last round of a stage. In the first, the centre becomes ``point``.
        point
            u_{r-1}, shape (n,).

        Returns
        -------
        Values
            ``change``: u - u_{r-1}. ``value``: mean of F over the local steps. ``average``: mean of this client's
            iterates, at the end of a stage if it is used.
        """
        if begins:
            self.begin_stage(point)
        u, total = point.copy(), 0.0
        for batch in self.batches(steps):
            value, g = self.objective.saddle_gradient(u, batch, prior)
            u = self.stepped(u, g, step_size)
            total += value
            if self.state.iterates.size:
                self.state.iterates += u
                self.state.counted += 1
        reply: Values = {"change": u - point, "value": total / steps}
        return {**reply, **self.average()} if ends and self.state.iterates.size else reply

    def stepped(self, u: Vector, g: Vector, eta: float) -> Vector:
        """Take a gradient step on F and the proximal term, in place."""
        u -= eta * self.pulled(g, u, self.state.centre)
        return u

    @answers("average")
    def average(self) -> Values:
        """Return the mean of this client's iterates since the stage began, shape (n,)."""
        mean = self.state.iterates / self.state.counted
        return {"average": mean.astype(self.objective.dtype)}
