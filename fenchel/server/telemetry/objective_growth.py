"""The watch over an objective that grows where it should fall."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

log = logging.getLogger("fenchel.server")

_FACTOR = 1e3  # of the first objective: what no run that converges comes to
_SMALL = 1.0
"""An objective that is never alarming: about what the zero model costs in classification.

So a run that begins next to its optimum may lose it again to noise. A run that diverges passes any constant soon.
"""


@dataclass
class ObjectiveGrowth:
    """Compares the evaluated models of a run with the first of them, and warns once.

    Attributes
    ----------
    first
        Objective of the first evaluated model; nan: none is known yet.
    """

    first: float = math.nan
    warned: bool = False

    def resume(self, objectives: Sequence[float | None], losses: Sequence[float | None]) -> None:
        """Take in what the rounds before had: the columns ``objective`` and ``test_loss`` of ``metrics.parquet``."""
        for objective, loss in zip(objectives, losses, strict=True):
            self._grown(_number(objective), _number(loss))

    def evaluated(self, t: int, figures: Mapping[str, float]) -> None:
        """Warn if the objective after round ``t`` has grown a thousandfold; without it, the loss of the test set."""
        grown = self._grown(figures.get("objective", math.nan), figures.get("test_loss", math.nan))
        if grown is not None:
            log.warning(
                "round %d: the objective is %.3g, and that of the first evaluated model was %.3g, so the run has "
                "probably diverged. It goes on. Begin it again with a smaller step_size, or see the page of the "
                "algorithm for what keeps it stable",
                t,
                grown,
                self.first,
            )

    def _grown(self, objective: float, loss: float) -> float | None:
        """Return the objective if it is the first that is alarming; ``None``: it is not."""
        value = loss if math.isnan(objective) else objective
        if math.isnan(self.first):
            self.first = value
        if self.warned or not value > max(_FACTOR * abs(self.first), _SMALL):
            return None
        self.warned = True
        return value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
