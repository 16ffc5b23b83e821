"""How good the current model is, on the server's test set and on the training data.

Where clients hold whole samples, they evaluate the model on their shards, and their sums give the training
objective; told apart, they say how evenly the model serves the clients. Where features are split, no client
can evaluate: its scores are sums of parts that others hold, and to put them together the server would have to
see them, sample by sample. So no client is asked, and the server computes the training objective only if it
can load the data set itself, which makes the run a simulation.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from common.arrays import Vector
from common.data.shard import Shard
from common.data.source import DataSource
from common.errors import DataError
from common.objectives.factory import build_objective
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.payload import Values
from common.phases import EVALUATE, EVALUATION
from common.settings.data import RaggedPartition
from common.settings.run import RunSettings
from server.fleet import Fleet

log = logging.getLogger("fenchel.server")

NAMES = (
    "objective",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "holdout_loss",
    "holdout_accuracy",
    "worst_client_loss",
    "client_accuracy_mean",
    "client_accuracy_worst",
    "client_accuracy_std",
    "client_accuracy_worst_tenth",
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
    source
        The data set, where the server computes the training objective itself; else ``None``.
    asks_clients
        Whether the clients evaluate the model on their data.
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
            Of the run.
        fleet
            Its clients; all have described their data.
        test
            The server's test set; may have no samples.
        source
            The data set, if the server can load it.

        Raises
        ------
        DataError
            The server shall evaluate on training samples, and lacks the network that prepares them.
        """
        shards = [member.shard for member in fleet.members.values() if member.shard is not None]
        # A ragged client may hold some value of every feature, and still no whole sample.
        ragged = isinstance(settings.data.partition, RaggedPartition) or settings.data.columns is not None
        whole = not ragged and all(shard.features_held == shard.features for shard in shards)
        chosen = settings.evaluation.training
        # Nobody else can, or may, compute the training objective.
        alone = not whole or (settings.claims_privacy and not settings.data.holdout)
        if source is not None and source.lack:
            if chosen:
                raise DataError(f"evaluation.training: true given, but {source.lack}")
            source = None
        by_server = source is not None and (alone if chosen is None else chosen)
        asks_clients = settings.clients_evaluate and whole and not by_server
        if not (whole or by_server):
            log.info(
                "features are split: no client can evaluate the model, and nobody computes its training loss"
            )
        objective = build_objective(settings.objective, test)
        return cls(settings, fleet, objective, source if by_server else None, asks_clients)

    @cached_property
    def _pooled(self) -> Objective:
        """The objective of all training samples together; they are prepared once."""
        assert self.source is not None
        return build_objective(self.settings.objective, self.source.training(self.settings.objective.dtype))

    def is_due(self, t: int) -> bool:
        """Whether the model is evaluated after round ``t``."""
        return t % self.settings.evaluation.every == 0 or t == self.settings.rounds

    async def evaluate(self, model: Vector) -> dict[str, float]:
        """Return the figures called :data:`NAMES`, as far as the settings ask for them; the others are nan.

        The objective is the mean loss over all training samples plus the penalty plus h. The clients' own sums
        give it exactly, and so does the server's own pass over the data set.
        """
        figures = dict.fromkeys(NAMES, math.nan)
        if self.settings.evaluation.server and self.objective.samples:
            figures |= _named("test", self.objective.evaluate(model))
        if self.source is not None:
            # In a thread: a pass over a large data set must not keep the connections waiting.
            train = await asyncio.to_thread(lambda: self._pooled.evaluate(model))
            figures |= self._training(train, model)
        if self.asks_clients:
            replies = await self.fleet.all().inspect(EVALUATE, returns=EVALUATION, model=model)
            shards, holdouts = (
                [_metrics(reply, prefix) for reply in replies.values()] for prefix in ("", "holdout_")
            )
            figures |= self._training(Metrics.total(shards), model)
            figures |= _named("holdout", Metrics.total(holdouts))
            figures |= over_clients(shards, holdouts)
        return figures

    def _training(self, train: Metrics, model: Vector) -> dict[str, float]:
        terms = self.objective.penalty(model) + self.objective.regularizer.value(model)
        return _named("train", train) | {"objective": train.loss + terms}


def over_clients(shards: Iterable[Metrics], holdouts: Iterable[Metrics]) -> dict[str, float]:
    """Return how evenly a model serves the clients, each of which counts the same however large it is.

    Parameters
    ----------
    shards
        Of each client, on the samples that it trains on.
    holdouts
        Of each client, on the samples that it only tests on; clients without such samples are left out.

    Returns
    -------
    dict[str, float]
        ``worst_client_loss``, the largest of the clients' mean losses, for which robust algorithms are made; and mean,
        smallest and (population) standard deviation of the clients' accuracies, and the mean of the smallest tenth,
        rounded up to whole clients (DRDM specification, sections 5.1 and 9). nan where nobody can tell.
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


def _metrics(reply: Values, prefix: str) -> Metrics:
    loss_sum, correct, samples = (reply[prefix + name] for name in ("loss_sum", "correct", "samples"))
    assert isinstance(loss_sum, int | float)
    assert isinstance(correct, int)
    assert isinstance(samples, int)
    return Metrics(float(loss_sum), correct if correct >= 0 else None, samples)


def _named(name: str, metrics: Metrics) -> dict[str, float]:
    accuracy = metrics.accuracy
    return {f"{name}_loss": metrics.loss, f"{name}_accuracy": math.nan if accuracy is None else accuracy}
