"""Settings of CODA+ and CODA."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from common.algorithms.staged import WindowedSettings
from common.algorithms.stages import Stage, TheorySchedule


class AveragingSettings(WindowedSettings):
    """What CODA+ and CODA share."""

    output: Literal["average", "last"] = Field(
        "average",
        description="what a stage hands on. average: of all local iterates of all clients, as in the paper; last: the "
        "model after its last round",
    )

    @property
    def needs_everybody(self) -> str | None:
        """The average is over all clients."""
        return "output: average is the mean over all local iterates" if self.output == "average" else None

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 1."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients)
        return self.schedule.stage(number, self.first_step, self.round_steps)


class CodaPlusSettings(AveragingSettings):
    """Local descent and ascent with periodic averaging (Yuan et al. 2021, Algorithms 1 and 2)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "train", "average")

    name: Literal["coda-plus"] = "coda-plus"


class CodaSettings(AveragingSettings):
    """CODA, which computes alpha anew after each stage (Guo et al. 2020; section 2.4)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "train", "average", "score")

    name: Literal["coda"] = "coda"
    dual_batch_size: PositiveInt | None = Field(
        None, description="samples for the new alpha after a stage (m_s); null: the whole shard"
    )
    dual_estimator: Literal["mixture", "client-means"] = Field(
        "mixture",
        description="how the new alpha is made. mixture: from the mean scores of either class over all clients; "
        "client-means: the mean of the clients' own values, as in the paper, which is another number where clients "
        "differ, and leaves out clients without samples of either class",
    )

    @model_validator(mode="after")
    def _estimator_knows_the_prior(self) -> Self:
        if self.prior is not None and self.dual_estimator == "client-means":
            raise ValueError(
                "dual_estimator: client-means takes differences of mean scores, which maximise the min-max function "
                f"only for the clients' own share of positive samples, but prior: {self.prior:g} is given; use mixture"
            )
        return self
