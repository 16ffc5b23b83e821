"""A client's sums for the evaluation of a model, over its own samples.

Losses are exact, so a server that chooses the models reads the samples from enough of them. A client evaluates
only where the settings of its run say so, and about as often as they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fenchel.client.count_file import counted, write_count
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError, PhaseError
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.score_groups import BINS, LEVELS, NO_PLACES, Places, check_places, score_groups
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.store import writing
from fenchel.common.wire.phases import EVALUATE
from fenchel.common.wire.values import Value, Values

EVALUATIONS = "evaluations.count"
"""Number of evaluations that a client has answered, in its folder of the run."""

_RESUMPTIONS = 20  # of a run that is so short that twice its evaluations are few


def evaluation_problem(settings: RunSettings, shard: Shard) -> str | None:
    """Return why a client with such a shard evaluates no model in a run, or ``None`` if it does."""
    if not settings.clients_evaluate:
        return "in this run clients do not evaluate (evaluation.clients: false, or differential privacy)"
    if settings.data.is_ragged:
        return "in this run clients hold parts of samples (data.columns, or data.partition.kind: ragged)"
    held = shard.features.shape[1]
    return f"it holds {held} of {shard.total_features} features" if held < shard.total_features else None


def most_evaluations(settings: RunSettings) -> int:
    """Return how many evaluations a client answers in a run.

    A server asks after each round that is due, once more for what the algorithm makes of the model at the end, and,
    where clients tell scores in groups, for further places on the line of scores each time. One that is resumed asks
    again for the rounds after its last checkpoint, maybe with other models. So twice as many are answered, and 20 more.
    """
    due = -(-settings.rounds // settings.evaluation.every) + 1
    looks = 1 if settings.evaluation.histograms is None else 1 + LEVELS
    return (2 * due + _RESUMPTIONS) * looks


class AnsweredEvaluations:
    """The evaluations that a client has answered in a run, up to the most that it answers.

    Parameters
    ----------
    path
        Where their number is kept, so that a new start does not begin again; ``None`` keeps it in memory.
    """

    def __init__(self, most: int, path: Path | None) -> None:
        self._most = most
        self._path = path
        self._count = counted(path)

    def check(self) -> None:
        """Raise a ``PhaseError`` if no more may be answered."""
        if self._count >= self._most:
            raise PhaseError(
                f"this client has answered {self._count} evaluations, the most in a run of so many rounds, and answers "
                "no more. Has the server been resumed that often?",
                phase=EVALUATE,
            )

    def add(self) -> None:
        """Count one more, before it leaves."""
        self._count += 1
        if self._path is not None:
            with writing(self._path, "client"):
                write_count(self._path, self._count)


@dataclass(frozen=True)
class ClientEvaluation:
    """What a client evaluates models on.

    Attributes
    ----------
    objective
        On the samples that it trains on.
    holdout
        On those that it only evaluates on, if any.
    least
        Samples that share a range of scores at least; ``None``: the server hears of no scores.
    answered
        How many models it has evaluated.
    """

    objective: Objective
    holdout: Objective | None
    least: int | None
    answered: AnsweredEvaluations

    def sums(self, values: Values) -> Values:
        """Return the sums that the server asks for, of the model in ``values``, and count them."""
        self.answered.check()
        model = values.get("model")
        if not isinstance(model, np.ndarray):
            raise PayloadError(f"phase {EVALUATE!r} takes an array named 'model', got {sorted(values)}")
        if model.shape != (self.objective.dimension,):
            raise PayloadError(
                f"a model of shape {model.shape} cannot be evaluated, expected {(self.objective.dimension,)}",
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
        self.answered.add()
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
    check_places(places, phase=EVALUATE)
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
