"""Settings common to CODASCA, CODA+, CODA and NPA."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from fenchel.algorithms.auc.stages import PracticeSchedule, Schedule, Stage, TheorySchedule
from fenchel.common.settings.algorithm import SMALLEST_STEP, AlgorithmSettings
from fenchel.common.settings.participation import AllClients, Participation

_LONGEST_ROUND = 1 << 31
"""Bound on the number of local steps of a round."""


def check_all_take_part(participation: Participation, setting: str) -> None:
    """Reject partial participation.

    Parameters
    ----------
    participation
        Participation settings of the run.
    setting
        Setting of the algorithm that requires all clients in every round, and the reason.

    Raises
    ------
    ValueError
        If the sampler draws only some clients, or the run would continue without lost clients.
    """
    needs = f"algorithm.{setting}, which needs all clients in every round"
    if not isinstance(participation.sampler, AllClients):
        raise ValueError(
            f"participation.sampler.kind: {participation.sampler.kind} given, but {needs}; use kind: all, or change "
            "that setting of the algorithm"
        )
    if participation.on_lost_state == "continue":
        raise ValueError(
            f"participation.on_lost_state: continue given, but {needs}; use stop, or change that setting of the "
            "algorithm"
        )


class StagedSettings(AlgorithmSettings):
    """Settings common to the AUC algorithms."""

    step_size: PositiveFloat | None = Field(
        None,
        description="learning rate of the local steps in the first stage (eta); null: 0.1, or with schedule.kind: "
        "theory the largest that the theorem allows. Its scale follows from objective.output: 1 to 5 for networks with "
        "a sigmoid, 0.003 to 0.03 for unbounded linear scores",
    )
    schedule: Schedule = Field(
        default_factory=lambda: PracticeSchedule(), description="step sizes and lengths of the stages"
    )
    gamma: NonNegativeFloat | None = Field(
        None,
        description="weight of (gamma/2) ||v - v_0||^2, which keeps the model, a and b near the start of the stage; "
        "null: 0.001, or with schedule.kind: theory the value of the theorem",
    )
    weighting: Literal["uniform", "samples"] = Field(
        "uniform",
        description="weights of the clients in averages and in the class prior: equal, as in the paper, or by samples",
    )
    batch_size: PositiveInt | None = Field(32, description="samples a step (B); null: the whole shard")
    batches: Literal["independent", "passes", "stratified"] = Field(
        "independent",
        description="sampling of batches. independent: distinct samples, drawn anew for each step; passes: each pass "
        "over the shard in a new random order; stratified: drawn anew, with the same number of positive samples in "
        "each, and at least one if the client has any",
    )
    prior: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="class prior p; null: computed from the numbers of samples and of positive samples, which each "
        "client sends once. Another p changes the objective",
    )

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        if self.batches == "stratified" and (self.batch_size is None or self.batch_size < 2):
            raise ValueError(
                f"batches: stratified needs a batch_size of at least 2, but it is {self.batch_size}; use a larger "
                "one, or batches: independent"
            )
        return self

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule_of_practice(cls, value: Any) -> Any:
        """Set ``kind: practice`` in a schedule that is given without ``kind``."""
        return {"kind": "practice", **value} if isinstance(value, Mapping) else value

    def checked_stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``, counted from 1, if it can be run.

        Raises
        ------
        ValueError
            If step sizes vanish, numbers of steps exceed their bound, or numbers are not finite.
        """
        schedule = self.schedule
        if isinstance(schedule, TheorySchedule):
            what = f"algorithm.schedule.polyak: {schedule.polyak:g}"
            advice = "use a smaller polyak or window, or fewer rounds"
        else:
            what = f"algorithm.schedule.decay: {schedule.decay:g}"
            advice = "use a smaller decay, a larger stage_steps, or fewer rounds"
        try:
            stage = self.stage(number, prior, clients)
        except (OverflowError, ZeroDivisionError):
            raise ValueError(
                f"{what} makes values of stage {number} exceed the range of floating-point numbers; {advice}"
            ) from None
        if stage.step_size < SMALLEST_STEP:
            raise ValueError(
                f"{what} makes the step size {stage.step_size:.3g} in stage {number}, which is too small to change "
                f"the model; {advice}"
            )
        if stage.local_steps > _LONGEST_ROUND:
            raise ValueError(
                f"{what} makes rounds of {stage.local_steps:.3g} local steps in stage {number}, which is more than "
                f"{_LONGEST_ROUND:.3g}; {advice}"
            )
        return stage

    def check_rounds(self, rounds: int, clients: int | None) -> None:
        """Reject numbers of rounds that reach a stage that cannot be run.

        If the class prior is not given, 1/2 is assumed, for which the stages of the theorems are shortest.

        Raises
        ------
        ValueError
            If the run would reach a stage that cannot be run.
        """
        prior, k = (0.5 if self.prior is None else self.prior), clients or 1
        number, done = 0, 0
        try:
            if isinstance(self.schedule, PracticeSchedule):
                steps = self.stage(1, prior, k).local_steps
                self.checked_stage((rounds - 1) * steps // self.schedule.stage_steps + 1, prior, k)
                return
            while done < rounds:
                number += 1
                done += self.checked_stage(number, prior, k).rounds
        except ValueError as error:
            raise ValueError(f"rounds: {rounds} given, but {error}") from None

    @property
    def proximal_weight(self) -> float:
        """Weight gamma of the proximal term."""
        if self.gamma is not None:
            return self.gamma
        return self.schedule.gamma if isinstance(self.schedule, TheorySchedule) else 1e-3

    @property
    def first_step(self) -> float:
        """Step size eta of the first stage, for schedules that do not derive it."""
        return 0.1 if self.step_size is None else self.step_size

    def positives_of_batch(self, samples: int, positives: int) -> int:
        """Return the number of positive samples in each stratified batch of a client."""
        size = self.batch_size or samples
        if positives in (0, samples):
            return size if positives else 0
        return min(max(1, round(positives / samples * size)), size - 1)

    def positive_rate(self, samples: int, positives: int) -> float:
        """Return p_k, the expected share of positive samples among those that a client draws."""
        if self.batches == "stratified" and self.batch_size is not None:
            return self.positives_of_batch(samples, positives) / self.batch_size
        return positives / samples

    @abstractmethod
    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``, counted from 1."""


class WindowedSettings(StagedSettings):
    """Settings of AUC algorithms with several local steps per round."""

    local_steps: PositiveInt | None = Field(
        None,
        description="local steps in a round (I); null: 32, or with schedule.kind: theory the value of the theorem. "
        "Longer rounds need smaller step sizes",
    )

    @model_validator(mode="after")
    def _stages_have_rounds(self) -> Self:
        if isinstance(self.schedule, TheorySchedule):
            if self.local_steps is not None:
                raise ValueError(
                    f"local_steps is {self.local_steps}, but with schedule.kind: theory the length of rounds follows "
                    "from the theorem; leave it out, or use schedule.window"
                )
        elif self.schedule.stage_steps < self.round_steps:
            raise ValueError(
                f"schedule.stage_steps is {self.schedule.stage_steps}, but a round has {self.round_steps} local_steps; "
                "a stage needs at least one round"
            )
        return self

    @property
    def round_steps(self) -> int:
        """Number I of local steps per round, for schedules that do not derive it."""
        return 32 if self.local_steps is None else self.local_steps
