"""An algorithm of one number, whose client half notes how often it computes and fails on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import Values

NAME = "tests.unit.client.tally:Tally"


class Tally(Algorithm):
    """Server half, which no test runs."""

    class Settings(AlgorithmSettings):
        """No parameters."""


class TallyClient(ClientAlgorithm):
    """Client half."""

    @dataclass
    class State:
        """The sum of all that was added, doubled when told."""

        total: Vector

    computed: ClassVar[list[str]] = []
    """Phases in the order in which they were computed, of all sessions."""

    def initial_state(self) -> Any:
        return self.State(np.zeros(2))

    @answers("add")
    def add(self, amount: float) -> Values:
        self.computed.append("add")
        self.state.total += amount
        return {"total": self.state.total, "round": self.round}

    @answers("double")
    def double(self) -> None:
        self.computed.append("double")
        self.state.total *= 2

    @answers("stumble")
    def stumble(self) -> Values:
        self.state.total += 1e6
        raise ArithmeticError("the step was too long")

    @answers("misfit")
    def misfit(self) -> Values:
        self.state.total += 1e6
        return {"total": np.zeros(2, np.complex128)}

    @answers("talkative")
    def talkative(self) -> Values:
        return {"total": self.state.total}


class Elsewhere:
    """No algorithm."""


class ElsewhereClient:
    """No client half."""
