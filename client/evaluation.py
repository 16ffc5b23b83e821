"""A client's sums for the evaluation of a model, over its own samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.score_groups import BINS, NO_PLACES, Places, places_problem, score_groups
from fenchel.common.wire.phases import EVALUATE
from fenchel.common.wire.values import Value, Values


@dataclass(frozen=True)
class ClientEvaluation:
    """What a client evaluates models on."""

    objective: Objective  # on the samples that it trains on
    holdout: Objective | None  # on those that it only evaluates on, if any
    shard: Shard  # the samples that it trains on
    least: int | None  # samples that share a range of scores at least; ``None``: the server hears of no scores

    def sums(self, values: Values) -> Values:
        """Return the sums that the server asks for, of the model in ``values``."""
        model = values.get("model")
        if not isinstance(model, np.ndarray):
            raise PayloadError(f"phase {EVALUATE!r} takes an array named 'model', got {sorted(values)}")
        if model.shape != (self.objective.dimension,):
            raise PayloadError(
                f"a model of shape {model.shape} cannot be evaluated here, where "
                f"{self.shard.features.shape[1]} of {self.shard.total_features} features are held",
                phase=EVALUATE,
            )
        own, ranked = self.objective.judge(model)
        held, held_ranked = (Metrics(0.0, 0, 0), None) if self.holdout is None else self.holdout.judge(model)
        reply = _sums("", own) | _sums("holdout_", held)
        if self.least is not None and self.objective.ranks:
            places = _places(values)
            reply |= _groups("", ranked, self.least, places)
            reply |= _groups("holdout_", held_ranked, self.least, places)
            if len(places):
                reply["levels"] = len(places)
        return reply


def _sums(prefix: str, metrics: Metrics) -> dict[str, Value]:
    """Return metrics as values for the wire; -1 correct stands for none (regression)."""
    return {
        prefix + "loss_sum": float(metrics.loss_sum),
        prefix + "correct": -1 if metrics.correct is None else int(metrics.correct),
        prefix + "samples": int(metrics.samples),
    }


def _places(values: Values) -> Places:
    """Return where the server divides the line of scores further."""
    places = values.get("places", NO_PLACES)
    if not (isinstance(places, np.ndarray) and places.dtype == np.float64):
        raise PayloadError(f"phase {EVALUATE!r} takes an array of float64 named 'places', if any")
    if problem := places_problem(places):
        raise PayloadError(f"the places that divide the line of scores {problem}", phase=EVALUATE)
    return places


def _groups(prefix: str, ranking: Ranking | None, least: int, places: Places) -> dict[str, Value]:
    """Return samples in groups of scores, by class, as values for the wire.

    No groups without samples; nor where a score is not finite, since these samples have no AUC.
    """
    if ranking is None or not np.isfinite(ranking.scores).all():
        ranking = Ranking(np.empty(0), np.empty(0, bool))
    of_classes = {"positives": ranking.positive, "negatives": ~ranking.positive}
    return {
        prefix + name: score_groups(ranking.scores[chosen], BINS, least, places) for name, chosen in of_classes.items()
    }
