"""Evaluation of the current model, on the server's test set and on the training data.

If clients hold whole samples, they evaluate the model on their shards. The sums of their values give the training
objective, and the values themselves the spread over clients.

The area under the ROC curve (AUC) is not a sum over samples. If the settings ask for it, clients send histograms of
their scores, from which the AUC of all samples is known up to an error. :mod:`fenchel.common.objectives.score_groups`
describes what histograms disclose about single scores.

If features are split, each score is a sum over clients. So no client can evaluate the model, and the server could do so
only if it saw the score of each sample. The server then computes the training objective only if it can load the data
set itself, which makes the run a simulation.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError, PayloadError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.metrics import FIGURES, Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.score_groups import (
    BINS,
    NO_PLACES,
    Groups,
    Places,
    check_groups,
    edges_of,
    further_places,
    grouped_auc,
    samples_in,
)
from fenchel.common.objectives.score_groups import LEVELS as LEVELS_AT_MOST
from fenchel.common.settings.run import RunSettings
from fenchel.common.wire.phases import EVALUATE, EVALUATION, LEVELS, grouped_in
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.cohort import Replies
from fenchel.fleet.fleet import Fleet

log = logging.getLogger("fenchel.server")

_MAX_FPR = 0.1  # upper limit of the false positive rate in the partial AUC
_CLOSE = 0.02  # error of the AUC below which the server requests no finer histogram


@dataclass(frozen=True)
class Evaluator:
    """Evaluator of a run's models.

    Attributes
    ----------
    settings
        Settings of the run.
    fleet
        Fleet whose clients evaluate the model.
    objective
        Objective on the server's test samples, if there are any.
    source
        Data set, if the server computes the training objective itself; otherwise ``None``.
    asks_clients
        True if the clients evaluate the model on their data.
    """

    settings: RunSettings
    fleet: Fleet
    objective: Objective
    source: DataSource | None
    asks_clients: bool

    @classmethod
    def build(cls, settings: RunSettings, fleet: Fleet, test: Shard, source: DataSource | None) -> Evaluator:
        """Return the evaluator of a run.

        Parameters
        ----------
        settings
            Settings of the run.
        fleet
            Fleet, whose clients have described their data.
        test
            Test samples of the server.
        source
            Data set; ``None`` if the server cannot load it.

        Raises
        ------
        DataError
            If the settings require the server to evaluate on training samples that it cannot prepare.
        """
        shards = [member.shard for member in fleet.members.values() if member.shard is not None]
        whole = not settings.is_ragged and all(shard.features_held == shard.features for shard in shards)
        chosen = settings.evaluation.training
        # True if clients cannot, or may not, compute the training objective.
        alone = not whole or (settings.claims_privacy and not settings.data.holdout)
        check_training(settings, source)
        if source is not None and source.lack:
            source = None
        by_server = source is not None and (alone if chosen is None else chosen)
        asks_clients = settings.clients_evaluate and whole and not by_server
        if not (whole or by_server):
            log.info("features are split, so no client can evaluate the model, and its training loss is not computed")
        objective = build_objective(settings.objective, test)
        return cls(settings, fleet, objective, source if by_server else None, asks_clients)

    @cached_property
    def _pooled(self) -> Objective:
        """Objective on all training samples, which are prepared once."""
        assert self.source is not None
        return build_objective(self.settings.objective, self.source.training(self.settings.objective.dtype))

    def is_due(self, t: int) -> bool:
        """Return True if the model is evaluated after round ``t``."""
        return t % self.settings.evaluation.every == 0 or t == self.settings.rounds

    async def evaluate(self, model: Vector) -> dict[str, float]:
        """Evaluate a model, shape (d,), and return its figures by name.

        The names are those of ``FIGURES``, and figures that are not computed are nan. The objective is the mean loss
        over all training samples, plus the penalty and the regulariser h. It is exact, whether it comes from the
        clients' sums or from the server's own pass over the data set.
        """
        figures = dict.fromkeys(FIGURES, math.nan)
        if self.settings.evaluation.server and self.objective.samples:
            metrics, ranking = self.objective.judge(model)
            figures |= _named("test", metrics)
            if ranking is not None:
                figures |= self._ranked(ranking)
        if self.source is not None:
            # A separate thread keeps the connections responsive during a pass over a large data set.
            metrics, auc = await asyncio.to_thread(self._on_all_training_samples, model)
            figures |= self._training(metrics, model)
            if auc is not None:
                # an exact AUC has error 0, an undefined one nan
                figures |= {"train_auc": auc, "train_auc_error": 0.0 * auc}
        if self.asks_clients:
            figures |= await self._on_the_clients(model)
        return figures

    def _ranked(self, ranking: Ranking) -> dict[str, float]:
        return {
            "test_auc": ranking.auc,
            "test_partial_auc": ranking.partial_auc(_MAX_FPR),
            "test_average_precision": ranking.average_precision,
        }

    def _on_all_training_samples(self, model: Vector) -> tuple[Metrics, float | None]:
        metrics, ranking = self._pooled.judge(model)
        return metrics, None if ranking is None else ranking.auc

    async def _on_the_clients(self, model: Vector) -> dict[str, float]:
        least = self.settings.evaluation.histograms if self.objective.ranks else None
        replies = await self._ask(model, least, NO_PLACES)
        shards, holdouts = ([_metrics(reply, prefix) for reply in replies.values()] for prefix in ("", "holdout_"))
        figures = self._training(Metrics.total(shards), model)
        figures |= _named("holdout", Metrics.total(holdouts))
        figures |= over_clients(shards, holdouts)
        losses = [metrics.loss for metrics in shards if metrics.samples]
        if losses:
            figures["uniform_objective"] = float(np.mean(losses)) + self._terms(model)
        if least is not None:
            figures |= await self._grouped(model, least, replies)
        return figures

    async def _ask(self, model: Vector, least: int | None, places: Places) -> Replies:
        clients, returns = self.fleet.all(), dict(EVALUATION)
        if least is None:
            return await clients.inspect(EVALUATE, _verify_counts, returns=returns, model=model)
        bins = edges_of(BINS, places).size + 1
        verify = partial(self._verify_groups, bins, least)
        returns |= grouped_in(bins)
        if not len(places):
            return await clients.inspect(EVALUATE, verify, returns=returns, model=model)
        return await clients.inspect(EVALUATE, verify, returns={**returns, **LEVELS}, model=model, places=places)

    async def _grouped(self, model: Vector, least: int, replies: Replies) -> dict[str, float]:
        """Return the AUC figures. Request finer histograms where scores concentrate until the error is small.

        Finer histograms are used only if the same clients reply again, so that AUC and losses are of the same samples.
        """
        places, edges = NO_PLACES, edges_of(BINS, NO_PLACES)
        figures = _aucs(replies.values(), edges)
        while len(places) < LEVELS_AT_MOST and max(figures["train_auc_error"], 0) > _CLOSE:
            positives, negatives = (
                [_groups(reply, prefix + kind) for reply in replies.values() for prefix in ("", "holdout_")]
                for kind in ("positives", "negatives")
            )
            further = further_places(positives, negatives, edges)
            if further is None:
                break
            places = np.vstack([places, further])
            again = await self._ask(model, least, places)
            if again.keys() != replies.keys():
                break
            replies, edges = again, edges_of(BINS, places)
            figures = _aucs(replies.values(), edges)
        return figures

    def _verify_groups(self, bins: int, least: int, client: str, reply: Values) -> None:
        """Raise ``PayloadError`` unless a client's histograms are valid and hold all samples of the client or none.

        A client sends empty histograms if its scores are not finite.
        """
        _verify_counts(client, reply)
        described = self.fleet.members[client].shard
        assert described is not None
        for prefix, samples in (("", described.samples), ("holdout_", reply["holdout_samples"])):
            groups = {prefix + name: _groups(reply, prefix + name) for name in ("positives", "negatives")}
            for name, those in groups.items():
                check_groups(name, those, bins, least, client=client)
            grouped = sum(map(samples_in, groups.values()))
            if grouped not in (samples, 0):
                raise PayloadError(
                    f"{' and '.join(map(repr, groups))} hold {grouped} samples, expected {samples}, the number "
                    "that the client reported",
                    client=client,
                )

    def _training(self, train: Metrics, model: Vector) -> dict[str, float]:
        return _named("train", train) | {"objective": train.loss + self._terms(model)}

    def _terms(self, model: Vector) -> float:
        return self.objective.penalty(model) + self.objective.regularizer.value(model)


def check_training(settings: RunSettings, source: DataSource | None) -> None:
    """Raise ``DataError`` if the server is to evaluate on training samples that it cannot prepare."""
    if settings.evaluation.training and source is not None and source.lack:
        raise DataError(f"true given, but {source.lack}; use false", key="evaluation.training")


def over_clients(shards: Iterable[Metrics], holdouts: Iterable[Metrics]) -> dict[str, float]:
    """Return the spread of a model's quality over the clients, with equal weight for each client.

    Parameters
    ----------
    shards
        Metrics of each client on its training samples.
    holdouts
        Metrics of each client on its test samples. Clients without test samples are left out.

    Returns
    -------
    dict[str, float]
        ``worst_client_loss``: largest mean loss of a client, which robust algorithms minimise; nan without samples. If
        clients have test samples, also ``client_accuracy_mean``, ``_worst`` (minimum) and ``_std`` (population standard
        deviation) of their accuracies, and ``client_accuracy_worst_tenth``, the mean of the smallest tenth, rounded up
        to whole clients (docs/specifications/drdm.md, sections 5.1 and 9).
    """
    losses = [metrics.loss for metrics in shards if metrics.samples]
    accuracies = np.sort([metrics.accuracy for metrics in holdouts if metrics.accuracy is not None])
    figures = {"worst_client_loss": max(losses, default=math.nan)}
    if not accuracies.size:
        return figures
    tenth = -(-accuracies.size // 10)
    return figures | {
        "client_accuracy_mean": float(accuracies.mean()),
        "client_accuracy_worst": float(accuracies[0]),
        "client_accuracy_std": float(accuracies.std()),
        "client_accuracy_worst_tenth": float(accuracies[:tenth].mean()),
    }


def _verify_counts(client: str, reply: Values) -> None:
    """Raise ``PayloadError`` if a client reports more correct samples than samples. -1 means that it counts none."""
    for prefix in ("", "holdout_"):
        metrics = _metrics(reply, prefix)
        if metrics.correct is not None and metrics.correct > metrics.samples:
            raise PayloadError(
                f"'{prefix}correct' is {metrics.correct}, expected at most {metrics.samples}, the number of samples",
                client=client,
            )


def _metrics(reply: Values, prefix: str) -> Metrics:
    loss_sum, correct, samples = (reply[prefix + name] for name in ("loss_sum", "correct", "samples"))
    assert isinstance(loss_sum, int | float)
    assert isinstance(correct, int)
    assert isinstance(samples, int)
    return Metrics(float(loss_sum), correct if correct >= 0 else None, samples)


def _groups(reply: Mapping[str, Value], name: str) -> Groups:
    groups = reply[name]
    assert isinstance(groups, np.ndarray)
    return groups


def _aucs(replies: Collection[Mapping[str, Value]], edges: Vector) -> dict[str, float]:
    bins = edges.size + 1
    return _grouped("train", replies, "", bins) | _grouped("holdout", replies, "holdout_", bins)


def _grouped(name: str, replies: Collection[Mapping[str, Value]], prefix: str, bins: int) -> dict[str, float]:
    """Return the AUC over the samples of all clients, with a bound on the error due to histograms.

    Both are nan if a client has samples but empty histograms, because its scores are not finite.
    """
    positives, negatives = ([_groups(reply, prefix + kind) for reply in replies] for kind in ("positives", "negatives"))
    grouped = all(
        samples_in(high) + samples_in(low) == reply[prefix + "samples"]
        for reply, high, low in zip(replies, positives, negatives, strict=True)
    )
    auc, error = grouped_auc(positives, negatives, bins) if grouped else (math.nan, math.nan)
    return {f"{name}_auc": auc, f"{name}_auc_error": error}


def _named(name: str, metrics: Metrics) -> dict[str, float]:
    accuracy = metrics.accuracy
    return {f"{name}_loss": metrics.loss, f"{name}_accuracy": math.nan if accuracy is None else accuracy}
