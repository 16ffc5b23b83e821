"""FedAvg with an aggregation that a few clients cannot move at will: median, trimmed mean, Krum.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018
(median, Definition 1; trimmed mean, Definition 2); Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017 (Krum, section 4; Multi-Krum, section 6).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt
from scipy.spatial.distance import pdist, squareform

from fenchel.algorithms.fedavg import FedAvgClient, LocalTrainingSettings
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.settings.participation import FixedSize, Participation
from fenchel.common.settings.uplink import Uplink


class RobustAggregationSettings(LocalTrainingSettings):
    """What stands in for the mean of local models, and how many of them may be anything."""

    treats_regularizer: ClassVar[bool] = True
    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True
    other_problem: ClassVar[str] = "whatever most clients agree on, each as much as any other"

    name: Literal["robust-aggregation"] = "robust-aggregation"
    rule: Literal["median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "trimmed-mean",
        description="median: of each coordinate. trimmed-mean: of each coordinate, without the `faulty` largest and "
        "smallest. krum: the model with the smallest squared distances to its nearest others. multi-krum: the mean of "
        "all but the `faulty` models for which they are largest",
    )
    faulty: NonNegativeInt = Field(1, description="f, how many clients of a cohort may send anything")

    @property
    def least(self) -> int:
        """How many models the rule needs, so that f of them cannot decide."""
        return 2 * self.faulty + (3 if self.rule in ("krum", "multi-krum") else 1)

    def link_problem(self, uplink: Uplink, *, noisy: bool) -> str | None:
        """Refuse models of which coordinates are left out: each client may send others."""
        if uplink.sparsify is not None:
            return "the rules compare whole models, and uplink.sparsify leaves coordinates out; leave it out"
        return None

    def participation_problem(self, participation: Participation) -> str | None:
        """Refuse cohorts that are too small for the rule."""
        sampler = participation.sampler
        return self._problem(sampler.size) if isinstance(sampler, FixedSize) else None

    def rounds_problem(self, rounds: int, clients: int | None) -> str | None:
        """Refuse federations that are too small for the rule."""
        return super().rounds_problem(rounds, clients) or (None if clients is None else self._problem(clients))

    def _problem(self, clients: int) -> str | None:
        if clients >= self.least:
            return None
        return (
            f"{self.rule} with algorithm.faulty: {self.faulty} needs {self.least} clients a round, and there are "
            f"{clients}; ask more of them, or allow fewer to be faulty"
        )


class RobustAggregation(Algorithm):
    """Each round a cohort trains locally from the global model, and a robust aggregate of the results is the next."""

    Settings = RobustAggregationSettings
    settings: RobustAggregationSettings

    async def round(self, t: int) -> None:
        """Draw S_t; w_{t+1} = R(ClientUpdate(k, w_t), k in S_t), where R is the rule."""
        x = self.model
        trained = await self.sample().ask(
            "train",
            model=self.downlink.wire(x, t),
            returns={"model": self.uplink.expected(x), "samples": int},
            min_replies=max(self.settings.least, self.fleet.participation.min_replies),
        )
        models = np.array(trained.values_of("model"), x.dtype)
        self.model = self.downlink.kept(aggregate(models, self.settings.rule, self.settings.faulty), t + 1)


class RobustAggregationClient(FedAvgClient):
    """Local steps as in FedAvg."""


def aggregate(models: NDArray[np.floating[Any]], rule: str, faulty: int) -> Vector:
    """Return what a rule makes of models.

    models: shape (m, d).
    rule, faulty: as in :class:`RobustAggregationSettings`; m is as large as the rule needs.

    Returns: Shape (d,), dtype of the models.
    """
    found: Vector
    match rule:
        case "median":
            found = np.median(models, axis=0)
        case "trimmed-mean":
            found = np.sort(models, axis=0)[faulty : len(models) - faulty].mean(axis=0)
        case _:
            order = np.argsort(krum_scores(models, faulty), kind="stable")
            found = models[order[: 1 if rule == "krum" else len(models) - faulty]].mean(axis=0)
    return found.astype(models.dtype, copy=False)


def krum_scores(models: NDArray[np.floating[Any]], faulty: int) -> Vector:
    """Return, for each model, the sum of its squared distances to the m - f - 2 others that are nearest.

    models: shape (m, d).

    Returns: Shape (m,), float64.
    """
    distances = squareform(pdist(models, "sqeuclidean"))
    nearest = np.sort(distances, axis=1)[:, 1 : len(models) - faulty - 1]  # without that to itself, 0
    scores: Vector = nearest.sum(axis=1)
    return scores
