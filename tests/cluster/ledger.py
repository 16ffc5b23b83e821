"""An algorithm that any lost or repeated instruction spoils for good.

Each client holds a dual vector; the duals of all clients add up to zero. A round asks a random cohort for
its duals pulled towards the client's own anchor, and tells it to subtract the mean: FedDCD without the
mathematics. One reply applied twice, or not at all, and the final model is another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import Values


class LedgerSettings(AlgorithmSettings):
    """Settings of the ledger."""

    nap: float = 0.0
    """Seconds that a client takes for each phase."""
    check: bool = True
    """Whether the duals must add up to zero in the end."""


class Ledger(Algorithm):
    """Server half."""

    @dataclass
    class State(Algorithm.State):
        """Keeps a trace of every round."""

        trace: Vector

    Settings = LedgerSettings
    figures = ("imbalance",)

    def initial_state(self, model: Vector) -> Any:
        return self.State(model, np.zeros_like(model))

    async def round(self, t: int) -> None:
        cohort = self.sample()
        proposals = await cohort.ask("propose", t=t, returns={"dual": self.model})
        center = proposals.mean("dual")
        await proposals.cohort.tell("shift", center=center)
        self.state.trace = 0.5 * self.state.trace + center
        self.model = self.model + self.state.trace / t

    async def finish(self) -> None:
        duals = await self.fleet.all().ask("show", returns={"dual": self.model})
        # Rounding alone may keep the sum from zero; a promise kept twice or not at all is much larger.
        imbalance = float(np.abs(duals.sum("dual")).max())
        if self.settings.check and imbalance > 1e-9:
            raise AssertionError(f"the duals add up to {imbalance}")
        self.model = np.concatenate([self.model, *(np.asarray(dual) for dual in duals.values_of("dual"))])


class LedgerClient(ClientAlgorithm):
    """Client half."""

    @dataclass
    class State:
        """The client's dual, and its proposal of this round."""

        dual: Vector
        proposal: Vector

    settings: LedgerSettings

    @answers("propose")
    def propose(self, t: int) -> Values:
        time.sleep(self.settings.nap)
        anchor = self.generator("anchor").standard_normal(self.state.dual.shape)
        self.state.proposal = 0.9 * self.state.dual + anchor / t
        return {"dual": self.state.proposal - self.state.dual}

    @answers("shift")
    def shift(self, center: Vector) -> None:
        time.sleep(self.settings.nap)
        self.state.dual = self.state.proposal - center

    @answers("show")
    def show(self) -> Values:
        return {"dual": self.state.dual}
