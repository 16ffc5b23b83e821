"""Evaluation of a model on a client's samples, as sums for the server.

Losses are exact, and a server that chooses the models could reconstruct samples from many losses. A client therefore
evaluates models only in runs whose settings require it, and answers a limited number of requests
(:func:`most_evaluations`).
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
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.phases import EVALUATE
from fenchel.common.wire.values import Value, Values

EVALUATIONS = "evaluations.count"
"""Name of the file with the number of answered evaluation requests, in the client's folder of the run."""

_RESUMPTIONS = 20  # number of additional evaluations, for short runs that are resumed several times


def evaluates(settings: RunSettings, shard: Shard) -> bool:
    """Return whether a client with this shard evaluates models in the run."""
    return settings.clients_evaluate and not settings.is_ragged and shard.features.shape[1] == shard.total_features


def most_evaluations(settings: RunSettings) -> int:
    """Return the largest number of evaluation requests that a client answers in a run.

    The server evaluates the model every ``evaluation.every`` rounds and the final model. If clients report scores in
    groups, each evaluation needs further requests, which refine the groups. A resumed server repeats the evaluations
    after its last checkpoint, possibly with other models. The limit therefore allows twice the number of evaluations
    and 20 more, each with all its requests.
    """
    due = -(-settings.rounds // settings.evaluation.every) + 1
    looks = 1 if settings.evaluation.histograms is None else 1 + LEVELS
    return (2 * due + _RESUMPTIONS) * looks


class AnsweredEvaluations:
    """Counter of the evaluation requests that a client has answered in a run, with an upper limit.

    Parameters
    ----------
    most
        Largest number of evaluation requests.
    path
        File of the counter, so that it survives a restart; ``None`` keeps it in memory.
    """

    def __init__(self, most: int, path: Path | None) -> None:
        self._most = most
        self._path = path
        self._count = counted(path)

    def check(self) -> None:
        """Raise ``PhaseError`` if the limit is reached."""
        if self._count >= self._most:
            raise PhaseError(
                f"this client has answered {self._count} evaluations, its maximum for a run of this many rounds, "
                "and answers no more; ask the server's operator whether the run was resumed that often",
                phase=EVALUATE,
            )

    def add(self) -> None:
        """Count an answered request, and write the count to the file. The caller sends the reply only after that."""
        self._count += 1
        if self._path is not None:
            with writing(self._path, "client"):
                write_count(self._path, self._count)


@dataclass(frozen=True)
class ClientEvaluation:
    """Evaluation of models on the samples of a client.

    Attributes
    ----------
    objective
        Objective on the training samples.
    holdout
        Objective on the holdout, if the client has one.
    least
        Smallest number of samples in a group of scores; ``None`` if no scores are reported to the server.
    answered
        Counter of answered evaluation requests.
    """

    objective: Objective
    holdout: Objective | None
    least: int | None
    answered: AnsweredEvaluations

    def sums(self, values: Values) -> Values:
        """Evaluate the model in ``values``, count the request, and return the sums and, with ``least``, the groups.

        Raises
        ------
        PhaseError
            If the limit on evaluation requests is reached.
        PayloadError
            If ``values`` have no model of the right shape, or invalid scores at which to divide groups.
        """
        self.answered.check()
        model = values.get("model")
        if not isinstance(model, np.ndarray):
            raise PayloadError(
                f"phase {EVALUATE!r} takes an array named 'model', but received {sorted(values)}{SAME_VERSION}"
            )
        if model.shape != (self.objective.dimension,):
            raise PayloadError(
                f"the model has shape {model.shape}, expected {(self.objective.dimension,)}{SAME_VERSION}",
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
    """Return metrics as values for the wire. For regression, which has no accuracy, ``correct`` is -1."""
    return {
        prefix + "loss_sum": float(metrics.loss_sum),
        prefix + "correct": -1 if metrics.correct is None else int(metrics.correct),
        prefix + "samples": int(metrics.samples),
    }


def _places(values: Values) -> Places:
    """Return the scores at which groups are to be divided further; raise ``PayloadError`` if they are invalid."""
    places = values.get("places", NO_PLACES)
    if not (isinstance(places, np.ndarray) and places.dtype == np.float64):
        raise PayloadError(f"'places' in phase {EVALUATE!r} is not an array of float64{SAME_VERSION}")
    check_places(places, phase=EVALUATE)
    return places


def _groups(prefix: str, ranking: Ranking | None, least: int, places: Places) -> dict[str, Value]:
    """Return the number of samples of each class by group of scores, as values for the wire.

    The groups are empty if there are no samples or a score is not finite, as there is no AUC then.
    """
    if ranking is None or not np.isfinite(ranking.scores).all():
        ranking = Ranking(np.empty(0), np.empty(0, bool))
    of_classes = {"positives": ranking.positive, "negatives": ~ranking.positive}
    return {
        prefix + name: score_groups(ranking.scores[chosen], BINS, least, places) for name, chosen in of_classes.items()
    }
