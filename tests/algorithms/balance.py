"""An algorithm whose clients' states must add up to zero, and whose final model shows every one of them.

Each client i holds y_i. A round asks a cohort to propose y_i plus something of its own, tells it to shift by
the mean of what was proposed, and tells everybody to remember that mean. An instruction that is lost, or done
twice, or done in another order, changes the final model.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.schema import ArraySpec
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Reduced, Replies

NAME = "tests.algorithms.balance:Balance"


class BalanceSettings(AlgorithmSettings):
    """What a test varies."""

    length: PositiveInt = 5
    """Entries of each y_i: many of them make messages of several frames."""
    fold: bool = False
    """Whether proposals are folded as they arrive."""


class Balance(Algorithm):
    """Server half."""

    @dataclass
    class State(Algorithm.State):
        """Also keeps a trace of all rounds."""

        trace: Vector

    Settings = BalanceSettings
    settings: BalanceSettings

    def initial_state(self, model: Vector) -> Any:
        return self.State(model, np.zeros(self.settings.length))

    async def start(self) -> None:
        await self.fleet.all().tell("remember", mean=np.ones(self.settings.length))

    async def round(self, t: int) -> None:
        returns = {"difference": ArraySpec(np.float64, (self.settings.length,))}
        cohort = self.sample()
        proposals: Replies | Reduced
        if self.settings.fold:
            proposals = await cohort.reduce("propose", t=t, returns=returns)
        else:
            proposals = await cohort.ask("propose", t=t, returns=returns)
        mean = proposals.mean("difference")
        await proposals.cohort.tell("shift", mean=mean)
        await self.fleet.all().tell("remember", mean=mean)
        self.state.trace = 0.5 * self.state.trace + mean

    async def finish(self) -> None:
        length = self.settings.length
        returns = {name: ArraySpec(np.float64, (length,)) for name in ("dual", "memory")}
        shown = await self.fleet.all().ask("show", returns=returns)
        rows = [self.state.trace, *(shown.values_of("dual")), *(shown.values_of("memory"))]
        self.model = np.concatenate([np.asarray(row) for row in rows])


class BalanceClient(ClientAlgorithm):
    """Client half."""

    @dataclass
    class State:
        """y_i, what was proposed last, and what was remembered."""

        dual: Vector
        proposal: Vector
        memory: Vector

    settings: BalanceSettings
    held_up: ClassVar[Mapping[tuple[str, int], threading.Event]] = {}
    """Clients and rounds whose proposal waits for an event."""

    def initial_state(self) -> Any:
        return self.State(*(np.zeros(self.settings.length) for _ in range(3)))

    @answers("propose")
    def propose(self, t: int) -> Values:
        if (self.client, t) in self.held_up:
            self.held_up[self.client, t].wait()
        pull = self.generator("pull").standard_normal(self.settings.length)
        self.state.proposal = 0.9 * self.state.dual + pull / t
        return {"difference": self.state.proposal - self.state.dual}

    @answers("shift")
    def shift(self, mean: Vector) -> None:
        self.state.dual = self.state.proposal - mean

    @answers("remember")
    def remember(self, mean: Vector) -> None:
        self.state.memory *= 0.7
        self.state.memory += mean

    @answers("show")
    def show(self) -> Values:
        return {"dual": self.state.dual, "memory": self.state.memory}
