"""Stages of CODASCA, CODA+, CODA and NPA, and their schedules (docs/specifications/codasca.md, section 2.6).

A stage fixes the step size, the number of local steps per round, and the centre of the proximal term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fenchel.common.settings.section import Section


@dataclass(frozen=True)
class Stage:
    """Stage of a run.

    Attributes
    ----------
    step_size
        Step size eta of local steps.
    local_steps
        Number I of local steps per round.
    rounds
        Number R of rounds, with I R = T local steps in the stage.
    """

    step_size: float
    local_steps: int
    rounds: int


class PracticeSchedule(Section):
    """Schedule of the paper's experiments: decreasing step sizes and a fixed number of local steps per round."""

    kind: Literal["practice"] = Field(
        "practice",
        description="the schedule of the papers' experiments: stages of equal length, each with a fraction of the step "
        "size of the one before",
    )
    stage_steps: PositiveInt = Field(
        2000,
        description="local steps of a stage (T_0); the stage ends with the first round that reaches them. The papers "
        "used 1000 to 4000, at most about a third of the run",
    )
    decay: float = Field(3.0, ge=1, description="divisor of the step size from one stage to the next; 1 keeps it")

    def stage(self, number: int, step_size: float, local_steps: int) -> Stage:
        """Return stage ``number``, counted from 1, given the step size of the first stage."""
        before, after = (-(-stages * self.stage_steps // local_steps) for stages in (number - 1, number))
        return Stage(step_size / self.decay ** (number - 1), local_steps, after - before)


class TheorySchedule(Section):
    """Schedules of the paper's theorems, from constants of the problem."""

    kind: Literal["theory"] = Field(
        description="the schedule of the theorems, which set gamma, eta_g, step sizes, local steps and lengths of "
        "stages from the constants below. The values are orders of magnitude too careful for practice"
    )
    smoothness: PositiveFloat = Field(1.0, description="Lipschitz constant of the gradient of f in all variables (ell)")
    primal_smoothness: PositiveFloat = Field(
        1.0, description="Lipschitz constant of the gradient of the primal objective phi (L)"
    )
    polyak: PositiveFloat = Field(0.1, description="Polyak-Lojasiewicz constant of phi (mu)")
    window: PositiveFloat = Field(
        1.0,
        description="local steps in the rounds of the first stage of codasca (I_0); for coda-plus and coda the free "
        "factor of their number; npa has one step a round",
    )

    @property
    def gamma(self) -> float:
        """Weight of the proximal term: gamma = 2 ell."""
        return 2 * self.smoothness

    @property
    def _primal(self) -> float:
        """Smoothness of the primal function: L_hat = L + 2 ell."""
        return self.primal_smoothness + 2 * self.smoothness

    def _concavity(self, prior: float) -> float:
        """Return the modulus of strong concavity mu_2 = 2 p (1-p), for a fraction p of positive samples."""
        return 2 * prior * (1 - prior)

    @property
    def rate(self) -> float:
        """Constant c of Theorem 1: each stage of CODA+ multiplies the step size by exp(-c)."""
        ratio = self.polyak / self._primal
        return ratio / (5 + ratio)

    @property
    def growth(self) -> float:
        """Constant rho of Theorem 2: each stage of CODASCA multiplies the number of local steps by exp(rho)."""
        c = 4 * self.smoothness + 248 / 53 * self._primal
        return 2 * self.polyak / (c + 2 * self.polyak)

    def longest_step(self, prior: float) -> float:
        """Return the largest eta_0 of Lemma 1."""
        ell = self.smoothness
        return min(1 / (3 * ell + 3 * ell**2 / self._concavity(prior)), 1 / (4 * ell))

    def longest_round(self, prior: float) -> float:
        """Return the largest eta_l eta_g I of Lemma 2."""
        ell, mu2 = self.smoothness, self._concavity(prior)
        return min(1 / (3 * ell + 3 * ell**2 / mu2), mu2 / (40 * ell**2))

    def averaging_stage(
        self, number: int, step_size: float | None, prior: float, clients: int, local_steps: int | None = None
    ) -> Stage:
        """Return stage ``number`` of CODA+ (Theorem 1).

        Parameters
        ----------
        number
            Number s of the stage, from 1.
        step_size
            eta_0; ``None`` for the largest that Lemma 1 allows.
        local_steps
            I, if it is given (1 for NPA).
        """
        first = self.longest_step(prior) if step_size is None else step_size
        grown = math.exp((number - 1) * self.rate)
        eta = first / grown
        if local_steps is None:
            local_steps = max(1, round(self.window / math.sqrt(clients * eta)))  # heterogeneous clients (D > 0)
        steps = 212 / (first * min(self.smoothness, self._concavity(prior))) * grown
        return Stage(eta, local_steps, math.ceil(steps / local_steps))

    def controlled_stage(self, number: int, round_length: float | None, prior: float, server_step_size: float) -> Stage:
        """Return stage ``number`` of CODASCA (Theorem 2): eta_l eta_g I and R are those of every stage.

        Parameters
        ----------
        number
            Number s of the stage, from 1.
        round_length
            eta_l eta_g I; ``None`` for the largest that Lemma 2 allows.
        """
        length = self.longest_round(prior) if round_length is None else round_length
        local_steps = max(1, round(self.window * math.exp(self.growth * (number - 1))))
        rounds = math.ceil(1000 / (length * min(self.smoothness, self._concavity(prior))))
        return Stage(length / (server_step_size * local_steps), local_steps, rounds)


Schedule = Annotated[PracticeSchedule | TheorySchedule, Field(discriminator="kind")]
