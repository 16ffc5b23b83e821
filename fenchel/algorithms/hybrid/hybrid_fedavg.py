"""FedAvg for data split by samples and features.

A baseline of Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning",
arXiv:2210.08106 (docs/specifications/hyfdca.md, section 2.7). If every client holds all features, it is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.algorithms.hyfdca.alignment import check_features
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Indices, Vector
from fenchel.common.objectives.linear import LinearObjective, require_one_score
from fenchel.common.optim.sparse_descent import descend
from fenchel.common.settings.algorithm import AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Sampler, Weighted
from fenchel.common.wire.phases import SAMPLES
from fenchel.common.wire.schema import ArraySpec
from fenchel.common.wire.values import Values
from fenchel.fleet.question import Each


class LocalDescentSettings(AlgorithmSettings):
    """Settings common to the baselines of HyFDCA: local steps on a client's samples and features, then averages."""

    splits_features: ClassVar[bool] = True
    other_problem: ClassVar[str] = (
        "no such sum if clients hold parts of samples, because it averages models feature by feature"
    )

    local_steps: PositiveInt = Field(10, description="steps of a client in a round (H)")
    batch_size: PositiveInt | None = Field(1, description="samples a step; null: the whole shard")
    step_size: PositiveFloat = Field(1.0, description="a of the step size a / (b + sqrt(t)) in round t")
    step_offset: NonNegativeFloat = Field(0.0, description="b of the step size a / (b + sqrt(t)) in round t")
    weighting: Literal["uniform", "samples"] = Field(
        "uniform", description="weights in the average of a feature over its holders: equal, or by samples"
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return the weights of the average if clients hold whole samples."""
        return None if isinstance(sampler, Weighted) else self.weighting

    def step_size_at(self, t: int) -> float:
        """Return the step size ``a / (b + sqrt(t))`` of round ``t``, counted from 1."""
        return self.step_size / (self.step_offset + math.sqrt(t))


class HybridFedAvgSettings(LocalDescentSettings):
    """FedAvg for hybrid data (Overman et al. 2022)."""

    name: Literal["hybrid-fedavg"] = "hybrid-fedavg"


class HybridFedAvg(Algorithm):
    """Server half: clients train the weights of their features; the server averages feature by feature."""

    @dataclass
    class State(Algorithm.State):
        """Global model, and the features of each client.

        Attributes
        ----------
        features_held
            M_k, the positions of each client's features in the model, by client id.
        """

        features_held: dict[str, Indices] = field(default_factory=dict)

    Settings: ClassVar[type[AlgorithmSettings]] = HybridFedAvgSettings
    settings: LocalDescentSettings
    fixed_fleet = "it is settled at the start which clients hold which features"

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        require_one_score(context.objective, context.settings.name)

    async def start(self) -> None:
        """Collect M_k of all clients. Raise an error if a client has no features, or invalid positions."""
        all_clients = self.fleet.all()
        reported = await all_clients.ask(
            "tell_features", returns={"features": ArraySpec(np.int64, (None,))}, min_replies=len(all_clients)
        )
        for client, reply in reported.items():
            features = cast(Indices, reply["features"])
            check_features(client, features, self.model.size)
            self.state.features_held[client] = features

    async def round(self, t: int) -> None:
        """Draw K_t; w[m] = mean of v_k[m] over the clients k in K_t that hold feature m."""
        held = self.state.features_held
        cohort = self.sample()
        parts = {client: self.model[held[client]] for client in cohort}
        trained = await cohort.ask("train", model=Each(parts), returns={"model": Each(parts), "samples": SAMPLES})
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
        Model, shape (m,), which gives the weights of features that are in no part.
    parts
        Part of each client: strictly increasing positions in the model, values of the same shape, and a positive
        weight.

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


class HybridFedAvgClient(ClientAlgorithm):
    """Client half: stochastic gradient descent from the global model on the client's features, without state."""

    settings: LocalDescentSettings
    objective: LinearObjective

    def __init__(self, context: ClientContext) -> None:
        require_one_score(context.objective, context.settings.name)
        super().__init__(context)

    @answers("tell_features")
    def tell_features(self) -> Values:
        """Return M_k, the positions of the client's features in the global model."""
        return {"features": self.objective.features_held}

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Take H steps from w[M_k]: v <- v - eta_t (lambda v + l_i'(x_{k,i}^T v) x_{k,i}); return v and n_k."""
        return {"model": self.descended(model), "samples": self.objective.samples}

    def descended(self, start: Vector, *, pull: float = 0.0, anchor: Vector | None = None) -> Vector:
        """Take this round's steps and return the result, shape (m,), see :mod:`fenchel.common.optim.sparse_descent`."""
        batches = self.objective.batches(
            self.generator("batches"), steps=self.settings.local_steps, batch_size=self.settings.batch_size
        )
        step_size = self.settings.step_size_at(self.round)
        return descend(self.objective, start, batches, step_size=step_size, pull=pull, anchor=anchor)
