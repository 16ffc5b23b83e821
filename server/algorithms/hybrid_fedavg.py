"""FedAvg for data split by samples and features, server half.

A baseline of Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning",
arXiv:2210.08106 (HyFDCA specification, section 2.7). Where every client holds all features it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from common.algorithms import AlgorithmSettings
from common.algorithms.hybrid_fedavg import HybridFedAvgSettings, LocalDescentSettings
from common.arrays import Indices, Vector
from common.errors import PayloadError
from common.expectation import ArraySpec
from common.objectives.linear import require_one_score
from server.algorithm import Algorithm, Conduct
from server.cohort import Each


class HybridFedAvg(Algorithm):
    """Clients train the weights of the features that they hold; the server averages feature by feature."""

    @dataclass
    class State(Algorithm.State):
        """The global model, and who holds which part of it.

        Attributes
        ----------
        features_held
            M_k, the positions of each client's features in the model, by client id.
        """

        features_held: dict[str, Indices] = field(default_factory=dict)

    Settings: ClassVar[type[AlgorithmSettings]] = HybridFedAvgSettings
    settings: LocalDescentSettings
    fixed_fleet = "it is settled at the start which clients hold which features"

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        require_one_score(conduct.objective, conduct.settings.name)

    async def start(self) -> None:
        """Learn every client's M_k."""
        everybody = self.fleet.all()
        told = await everybody.ask(
            "tell_features",
            returns={"features": ArraySpec(np.int64, (None,))},
            min_replies=len(everybody),
        )
        self.state.features_held = {
            client: checked_positions(cast(Indices, reply["features"]), self.model.size, client)
            for client, reply in told.items()
        }

    async def round(self, t: int) -> None:
        """Draw K_t; w[m] = mean of v_k[m] over the clients k in K_t that hold feature m."""
        held = self.state.features_held
        cohort = self.sample()
        parts = {client: self.model[held[client]] for client in cohort}
        trained = await cohort.ask("train", model=Each(parts), returns={"model": Each(parts), "samples": int})
        by_samples = self.settings.weighting == "samples"
        self.model = averaged_by_feature(
            self.model,
            (
                (held[client], cast(Vector, reply["model"]), cast(int, reply["samples"]) if by_samples else 1)
                for client, reply in trained.items()
            ),
        )


def averaged_by_feature(model: Vector, parts: Iterable[tuple[Indices, Vector, float]]) -> Vector:
    """Return the model with the weight of each feature averaged over the parts that have it.

    Parameters
    ----------
    model
        Shape (m,); a feature that no part has keeps its weight from here.
    parts
        Of each client: positions in the model, strictly increasing; the values there, of the same
        shape; and how much they weigh, above 0.

    Returns
    -------
    Vector
        Shape (m,), a new array.
    """
    total = np.zeros_like(model)
    weight = np.zeros(model.shape)
    for positions, values, weighs in parts:
        total[positions] += weighs * values
        weight[positions] += weighs
    result = model.copy()
    np.divide(total, weight.astype(model.dtype, copy=False), out=result, where=weight > 0)
    return result


def checked_positions(features: Indices, total: int, client: str) -> Indices:
    """Return what a client said of the features that it holds, if that can be.

    Raises
    ------
    PayloadError
        There are none, they are not strictly increasing, or one is outside 0..total-1.
    """
    increasing = features.size and features[0] >= 0 and features[-1] < total and (np.diff(features) > 0).all()
    if not increasing:
        raise PayloadError(
            f"client {client}: its features must be strictly increasing positions from 0 to {total - 1}, at "
            "least one; does this client's version of Fenchel fit the server's?"
        )
    return features
