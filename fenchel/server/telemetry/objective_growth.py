"""Detection of a run that diverges, by the growth of its objective."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

log = logging.getLogger("fenchel.server")

_FACTOR = 1e3  # ratio to the first objective that only divergent runs reach
_SMALL = 1.0
"""Objective up to which no warning is given: roughly that of the zero model in classification.

A run that begins close to its optimum may drift away from it by noise. A run that diverges soon exceeds any constant.
"""


@dataclass
class ObjectiveGrowth:
    """Comparison of each evaluated model's objective with that of the first one, which warns once of divergence.

    Attributes
    ----------
    starts_near_one
        True if the zero model has an objective of about 1, so that even the first evaluated model can be too bad.
    first
        Objective of the first evaluated model, or its test loss if the objective is nan; nan: neither is known yet.
    warned
        True after the warning.
    """

    starts_near_one: bool = False
    first: float = math.nan
    warned: bool = False

    def resume(self, objectives: Sequence[float | None], losses: Sequence[float | None]) -> None:
        """Continue after earlier rounds, given the columns ``objective`` and ``test_loss`` of ``metrics.parquet``."""
        for objective, loss in zip(objectives, losses, strict=True):
            self._grown(_number(objective), _number(loss))

    def evaluated(self, t: int, figures: Mapping[str, float]) -> None:
        """Warn once if the objective after round ``t`` exceeds 1 and a thousand times that of the first or zero model.

        If the objective is nan, the test loss replaces it.
        """
        grown = self._grown(figures.get("objective", math.nan), figures.get("test_loss", math.nan))
        if grown is not None:
            log.warning(
                "round %d: the objective is %.3g, but that of the %s, so the run has probably diverged. It continues; "
                "a new run with scaled features (data.scale) or a smaller step_size may converge",
                t,
                grown,
                f"first evaluated model was {self.first:.3g}" if grown > self.first else "zero model is about 1",
            )

    def _grown(self, objective: float, loss: float) -> float | None:
        """Return the objective if a warning about it is due, otherwise ``None``."""
        value = loss if math.isnan(objective) else objective
        if math.isnan(self.first):
            self.first = value
        start = min(abs(self.first), _SMALL) if self.starts_near_one else abs(self.first)
        if self.warned or not value > max(_FACTOR * start, _SMALL):
            return None
        self.warned = True
        return value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
