"""Settings of CODASCA."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.algorithms.staged import WindowedSettings
from common.algorithms.stages import Stage, TheorySchedule


class CodascaSettings(WindowedSettings):
    """CODA+ with control variates on primal and dual variables (Yuan et al. 2021, Algorithms 3 and 4)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "gradient", "train")

    name: Literal["codasca"] = "codasca"
    server_step_size: PositiveFloat | None = Field(
        None,
        description="step size of the server along the mean change (eta_g); null: 1, or with schedule.kind: theory the "
        "square root of the number of clients",
    )
    cv_init: Literal["carry", "zero", "gradient"] = Field(
        "carry",
        description="control variates at the start of a stage. carry: those of the stage before; zero: 0, as in the "
        "paper, which lets clients drift in the first round of every stage; gradient: each client's gradient there, "
        "for one more exchange",
    )
    cv_batch_size: PositiveInt | None = Field(
        None, description="with cv_init: gradient, samples for that gradient; null: the whole shard"
    )
    output: Literal["last", "random"] = Field(
        "last",
        description="what a stage hands on. last: the model after its last round; random: after a random round, as in "
        "the paper; the stage then ends there",
    )
    wire: Literal["paper", "compact"] = Field(
        "compact",
        description="paper: 2 (d + 3) numbers a round and client in each direction; compact: d + 3 each, the same "
        "algorithm, for which all clients must take part in every round",
    )

    @model_validator(mode="after")
    def _wire_fits(self) -> Self:
        if self.wire == "compact" and self.bends_steps:
            raise ValueError(
                "gradient_clip, weight_decay, dual_floor and dual_step: plug-in make steps that do not follow from the "
                "control variates alone, which is all that travels with wire: compact; use wire: paper"
            )
        return self

    @model_validator(mode="after")
    def _first_control_variates_fit(self) -> Self:
        if self.cv_init != "gradient" and self.cv_batch_size is not None:
            raise ValueError(
                f"cv_batch_size belongs to cv_init: gradient, but cv_init is {self.cv_init}; leave it out"
            )
        if self.cv_init == "gradient" and self.batches == "stratified":
            raise ValueError(
                "cv_init: gradient takes gradients on samples as they are, but batches: stratified draws others; use "
                "cv_init: carry, or batches: independent"
            )
        return self

    @model_validator(mode="after")
    def _theory_is_for_all_data(self) -> Self:
        if isinstance(self.schedule, TheorySchedule) and not self.schedule.heterogeneous:
            raise ValueError(
                "schedule.heterogeneous: false shortens the rounds of coda-plus and coda; those of codasca are the "
                "same for all data; leave it out"
            )
        return self

    @property
    def needs_everybody(self) -> str | None:
        """What travels in the compact form are means over all clients."""
        if self.wire == "compact":
            return "wire: compact leaves out what follows from the mean of all clients"
        return None

    def server_step(self, clients: int) -> float:
        """eta_g."""
        if self.server_step_size is not None:
            return self.server_step_size
        return math.sqrt(clients) if isinstance(self.schedule, TheorySchedule) else 1.0

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 2."""
        if isinstance(self.schedule, TheorySchedule):
            eta_g = self.server_step(clients)
            length = (
                None
                if self.step_size is None
                else self.step_size * eta_g * max(1, round(self.schedule.window))
            )
            return self.schedule.controlled_stage(number, length, prior, eta_g)
        return self.schedule.stage(number, self.first_step, self.round_steps)
