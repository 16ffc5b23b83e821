"""What DRDM, DRFA and SCAFF-PD have in common: a weight for each client.

The weights lambda lie on the simplex and maximise ``sum_i lambda_i f_i(w)``, so they grow where the loss is large (DRDM
specification, sections 1.1 and 2.3). They never leave the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.algorithms.drdm import RobustSettings
from common.arrays import Vector
from common.errors import PayloadError
from common.projection import onto
from server.algorithm import Algorithm, Conduct

_ABSURD = 1e100  # a step along it, scaled by any number of clients, is still a number


class Robust(Algorithm):
    """An algorithm that minimises the largest of the clients' losses."""

    @dataclass
    class State(Algorithm.State):
        """The global model, the weights, and what the server knows of the clients. N is the number of clients.

        Attributes
        ----------
        weights
            lambda, shape (N,), float64, in the order of client ids.
        losses
            What each client last reported as its loss, shape (N,), float64; nan before.
        unvisited
            Rounds since each client last took part, shape (N,): who is never visited again has a drift that is never
            renewed (section 6.1, E2).
        """

        weights: NDArray[np.float64]
        losses: NDArray[np.float64]
        unvisited: NDArray[np.int64]

    settings: RobustSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = (
        "largest_weight",
        "zero_weights",
        "weights_entropy",
        "longest_unvisited",
        "worst_reported_loss",
    )
    fixed_fleet: ClassVar[str] = "the clients' weights are a point of a simplex with a corner for each client"

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.place = {client: place for place, client in enumerate(self.fleet.members)}

    def initial_state(self, model: Vector) -> Any:
        """Begin with lambda_i = 1/N, or the clients' shares of the samples."""
        return self.State(**self.beginning(model))

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the first round."""
        clients = len(self.fleet.members)
        weights = np.full(clients, 1 / clients)
        if self.settings.initial_weights == "samples":
            shards = [member.shard for member in self.fleet.members.values()]
            samples = np.array([0 if shard is None else shard.samples for shard in shards], np.float64)
            weights = samples / samples.sum()
        return {
            "model": onto(self.settings.constraint, model),
            "weights": weights,
            "losses": np.full(clients, np.nan),
            "unvisited": np.zeros(clients, np.int64),
        }

    def places(self, clients: Iterable[str]) -> NDArray[np.int64]:
        """Return where clients stand in the vectors of the state."""
        return np.array([self.place[client] for client in clients], np.int64)

    def heard(self, reported: Mapping[str, float]) -> NDArray[np.float64]:
        """Note the losses of some clients, in the order of their ids; return them as they count, shape (m,).

        Raises
        ------
        PayloadError
            A loss is so large that a step along it would have no end.
        """
        losses = np.array(list(reported.values()), np.float64)
        for client, loss in reported.items():
            if abs(loss) > _ABSURD and self.settings.largest_loss is None:
                raise PayloadError(
                    f"client {client} reports a loss of {loss:g}, which cannot steer the clients' weights: either its "
                    "model has diverged (take smaller steps), or it lies; algorithm.largest_loss cuts losses off"
                )
        if self.settings.largest_loss is not None:
            losses = np.clip(losses, 0, self.settings.largest_loss)
        self.state.losses[self.places(reported)] = losses
        return losses

    def visited(self, clients: Iterable[str]) -> None:
        """Note who took part in a round."""
        self.state.unvisited += 1
        self.state.unvisited[self.places(clients)] = 0

    def metrics(self) -> dict[str, float]:
        """Return how uneven the weights are, and for how long somebody has not taken part."""
        state = self.state
        positive = state.weights[state.weights > 0]
        return {
            "largest_weight": float(state.weights.max()),
            "zero_weights": float(state.weights.size - positive.size),
            "weights_entropy": float(-(positive * np.log(positive)).sum()),
            "longest_unvisited": float(state.unvisited.max()),
            "worst_reported_loss": float(np.fmax.reduce(state.losses)),
        }
