"""How good the current model is, on the server's test set and on the clients' data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.arrays import Vector
from common.data.shard import Shard
from common.objectives.factory import build_objective
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.payload import Values
from common.phases import EVALUATE, EVALUATION
from common.settings.run import RunSettings
from server.fleet import Fleet

NAMES = (
    "objective",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "holdout_loss",
    "holdout_accuracy",
)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models.

    Attributes
    ----------
    settings
        Of the run.
    fleet
        Whose data the training objective is made of.
    objective
        Of the whole problem; holds the server's test samples, if there are any.
    """

    settings: RunSettings
    fleet: Fleet
    objective: Objective

    @classmethod
    def build(cls, settings: RunSettings, fleet: Fleet, test: Shard) -> Evaluator:
        """Return the evaluator of a run; ``test`` may have no samples."""
        return cls(settings, fleet, build_objective(settings.objective, test))

    def is_due(self, t: int) -> bool:
        """Whether the model is evaluated after round ``t``."""
        return t % self.settings.evaluation.every == 0 or t == self.settings.rounds

    async def evaluate(self, model: Vector) -> dict[str, float]:
        """Return the figures called :data:`NAMES`, as far as the settings ask for them; the others are nan.

        The objective is the mean loss over all training samples plus the penalty, which the clients'
        own sums give exactly.
        """
        figures = dict.fromkeys(NAMES, math.nan)
        if self.settings.evaluation.server and self.objective.samples:
            figures |= _named("test", self.objective.evaluate(model))
        if self.settings.evaluation.clients:
            replies = await self.fleet.all().inspect(EVALUATE, returns=EVALUATION, model=model)
            train = Metrics.total(_metrics(reply, "") for reply in replies.values())
            figures |= _named("train", train)
            figures["objective"] = train.loss + self.objective.penalty(model)
            figures |= _named(
                "holdout", Metrics.total(_metrics(reply, "holdout_") for reply in replies.values())
            )
        return figures


def _metrics(reply: Values, prefix: str) -> Metrics:
    loss_sum, correct, samples = (reply[prefix + name] for name in ("loss_sum", "correct", "samples"))
    assert isinstance(loss_sum, int | float)
    assert isinstance(correct, int)
    assert isinstance(samples, int)
    return Metrics(float(loss_sum), correct if correct >= 0 else None, samples)


def _named(name: str, metrics: Metrics) -> dict[str, float]:
    accuracy = metrics.accuracy
    return {f"{name}_loss": metrics.loss, f"{name}_accuracy": math.nan if accuracy is None else accuracy}
