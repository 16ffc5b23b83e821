"""Settings of NPA, the naive parallel algorithm."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from common.algorithms.staged import StagedSettings
from common.algorithms.stages import Stage, TheorySchedule


class NaiveSettings(StagedSettings):
    """The naive parallel algorithm: one averaged gradient a round (appendix C of the paper)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "gradient")
    stateless: ClassVar[bool] = True

    name: Literal["npa"] = "npa"
    output: Literal["average", "last"] = Field(
        "average",
        description="what a stage hands on. average: of the model after each of its rounds; last: after the last",
    )

    @property
    def local_steps(self) -> int:
        """I = 1."""
        return 1

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 1 with I = 1."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients, local_steps=1)
        return self.schedule.stage(number, self.first_step, 1)

    @model_validator(mode="after")
    def _steps_are_the_servers(self) -> Self:
        if self.bends_steps:
            raise ValueError(
                "gradient_clip, weight_decay, dual_floor and dual_step change the steps of clients, but with npa the "
                "server takes them; use coda-plus with local_steps: 1"
            )
        return self

    @model_validator(mode="after")
    def _rounds_have_one_step(self) -> Self:
        if isinstance(self.schedule, TheorySchedule) and (
            self.schedule.window != 1 or not self.schedule.heterogeneous
        ):
            raise ValueError(
                "schedule.window and schedule.heterogeneous say how long rounds are, but those of npa have one step; "
                "leave them out"
            )
        return self
