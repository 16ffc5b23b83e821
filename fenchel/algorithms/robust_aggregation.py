"""FedAvg with an aggregation that is robust to a few faulty clients: median, trimmed mean, Krum.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018
(median, Definition 1; trimmed mean, Definition 2); Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017 (Krum, section 4; Multi-Krum, section 6).
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from fenchel.algorithms.fedavg import FedAvgClient, LocalTrainingSettings
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import SettingsError
from fenchel.common.settings.participation import Cyclic, FixedSize, Fraction, Participation, Weighted
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.phases import SAMPLES
from fenchel.fleet.sampling import fraction_size

log = logging.getLogger("fenchel.server")


class RobustAggregationSettings(LocalTrainingSettings):
    """Median, trimmed mean or Krum, against faulty clients."""

    treats_regularizer: ClassVar[bool] = True
    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True
    other_problem: ClassVar[str] = (
        "no fixed sum: the rule discards outlying models, and counts the other clients equally"
    )

    name: Literal["robust-aggregation"] = "robust-aggregation"
    rule: Literal["median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "trimmed-mean",
        description="aggregation rule. median: of each coordinate; trimmed-mean: of each coordinate, without the "
        "`faulty` largest and smallest; krum: the model with the smallest squared distances to its nearest others; "
        "multi-krum: the mean of all but the `faulty` models for which these are largest",
    )
    faulty: NonNegativeInt = Field(1, description="number of clients of a cohort that may send arbitrary models (f)")

    @property
    def least(self) -> int:
        """Least number of models for which the rule tolerates f faulty ones."""
        return 2 * self.faulty + (3 if self.rule in ("krum", "multi-krum") else 1)

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Reject sparsified models, as clients may send different coordinates.

        Raises
        ------
        ValueError
            If the uplink is sparsified.
        """
        if uplink.sparsify is not None:
            raise ValueError(
                f"algorithm: {self.name}: the rules compare whole models, but uplink.sparsify leaves coordinates out; "
                "leave uplink.sparsify out"
            )

    def check_participation(self, participation: Participation) -> None:
        """Reject cohorts that are too small for the rule.

        Raises
        ------
        ValueError
            If the sampler draws fewer clients than :attr:`least`.
        """
        sampler = participation.sampler
        if isinstance(sampler, FixedSize) or (isinstance(sampler, Weighted) and not sampler.replacement):
            self.check_clients(sampler.size)

    def check_rounds(self, rounds: int, clients: int | None) -> None:
        """Reject federations that are too small for the rule.

        Raises
        ------
        ValueError
            If there are fewer clients than :attr:`least`, or more rounds than the step size allows.
        """
        super().check_rounds(rounds, clients)
        if clients is not None:
            self.check_clients(clients)

    def check_clients(self, clients: int) -> None:
        """Raise ``ValueError`` if a round with this number of clients has too few for the rule."""
        if clients < self.least:
            raise ValueError(
                f"{self.rule} with algorithm.faulty: {self.faulty} needs {self.least} clients a round, but has "
                f"{clients}; sample more clients, or lower algorithm.faulty"
            )


class RobustAggregation(Algorithm):
    """Server half: a cohort trains locally, and a robust aggregate of the results is the next model."""

    Settings = RobustAggregationSettings
    settings: RobustAggregationSettings

    def check(self, data: DataSource | None) -> None:
        """Reject samplers whose cohorts, of this number of clients, are too small for the rule."""
        clients, sampler = len(self.fleet.members), self.fleet.participation.sampler
        match sampler:
            case Fraction():
                cohort = fraction_size(sampler, clients)
            case Cyclic():
                cohort = clients // sampler.groups
            case _:
                return
        try:
            self.settings.check_clients(cohort)
        except ValueError as error:
            raise SettingsError(
                f"{sampler.kind} draws {cohort} of {clients} clients, but {error}", key="participation.sampler"
            ) from None

    async def round(self, t: int) -> None:
        """Draw S_t; w_{t+1} = R(ClientUpdate(k, w_t), k in S_t), where R is the rule.

        The model stays as it is if S_t has fewer clients than the rule needs.
        """
        cohort = self.sample()
        if len(cohort) < self.settings.least:
            log.warning(
                "round %d: the cohort has %d clients, but %s with algorithm.faulty: %d needs %d, so the model does not "
                "change. If this recurs, begin a new run with larger cohorts, or a lower algorithm.faulty",
                t,
                len(cohort),
                self.settings.rule,
                self.settings.faulty,
                self.settings.least,
            )
            return
        trained = await cohort.ask(
            "train",
            model=self.broadcast,
            returns={"model": self.upload, "samples": SAMPLES},
            min_replies=max(self.settings.least, self.fleet.participation.min_replies),
        )
        models = np.array(trained.values_of("model"), self.model.dtype)
        self.model = aggregate(models, self.settings.rule, self.settings.faulty)


class RobustAggregationClient(FedAvgClient):
    """Client half: local steps as in FedAvg."""


def aggregate(models: NDArray[np.floating[Any]], rule: str, faulty: int) -> Vector:
    """Aggregate models by a robust rule.

    Parameters
    ----------
    models
        Local models, shape (m, d), where m is at least :attr:`RobustAggregationSettings.least`.
    rule, faulty
        As in :class:`RobustAggregationSettings`.

    Returns
    -------
    Vector
        Aggregate, shape (d,), in the dtype of the models.
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
    """Return the sum of squared distances from each model to its m - f - 2 nearest others, shape (m,), float64.

    Parameters
    ----------
    models
        Local models, shape (m, d).
    faulty
        Number f of faulty models.
    """
    from scipy.spatial.distance import pdist, squareform  # late import, because the import is slow

    distances = squareform(pdist(models, "sqeuclidean"))
    # without column 0, the distance of each model to itself
    nearest = np.sort(distances, axis=1)[:, 1 : len(models) - faulty - 1]
    scores: Vector = nearest.sum(axis=1)
    return scores
