"""Base of DRDM, DRFA and SCAFF-PD, with a weight for each client.

The weights lambda lie on the simplex and maximise ``sum_i lambda_i f_i(w)``, so they grow with the loss
(docs/specifications/drdm.md, sections 1.1 and 2.3). The server keeps them. A client receives at most its own weight, as
a factor on its gradients (``correction: lambda-scaled`` of DRDM).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.fixed_fleet import FixedFleet
from fenchel.algorithms.robust.settings import RobustSettings
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.optim.projection import onto, onto_simplex
from fenchel.common.wire.schema import ABSURD, Expected, NumberSpec

log = logging.getLogger("fenchel.server")


class Robust(FixedFleet):
    """Server half that minimises the largest of the clients' losses."""

    @dataclass
    class State(FixedFleet.State):
        """Global model, weights, and statistics of the N clients.

        Attributes
        ----------
        weights
            lambda, shape (N,), float64, in the order of client ids.
        losses
            Last reported loss of each client, shape (N,), float64; initially nan.
        unvisited
            Number of rounds since each client took part, shape (N,). The drift of a client that no longer takes part is
            not renewed (docs/specifications/drdm.md, section 6.1, E2).
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
    client_figures: ClassVar[tuple[str, ...]] = ("weight", "reported_loss")
    fixed_fleet: ClassVar[str] = "the clients' weights are a point of a simplex with a corner for each client"

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.objective = context.objective

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the first round, with lambda_i = 1/N."""
        clients = len(self.fleet.members)
        return super().beginning(onto(self.settings.constraint, model)) | {
            "weights": np.full(clients, 1 / clients),
            "losses": np.full(clients, np.nan),
            "unvisited": np.zeros(clients, np.int64),
        }

    def places(self, clients: Iterable[str]) -> NDArray[np.int64]:
        """Return the positions of clients in the vectors of the state, in the given order."""
        return np.array([self.place[client] for client in clients], np.int64)

    async def part_with_lost(self) -> bool:
        """Restrict the problem to the remaining clients; return whether clients were lost.

        With ``participation.on_lost_state: continue``, lambda is projected onto the simplex of the remaining clients, N
        is their number, and the losses of lost clients are dropped.
        """
        names, state = self.newly_lost(), self.state
        if names is None:
            return False
        weight = float(state.weights[self.places(names)].sum())
        state.losses[state.lost] = np.nan
        state.weights = self.onto_simplex(state.weights)
        log.warning(
            "clients are lost: %s. Their weight of %.3g is redistributed to the remaining %d clients, whose largest "
            "loss is now minimised",
            ", ".join(names),
            weight,
            self.clients,
        )
        return True

    def onto_simplex(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the projection onto the simplex of the remaining clients, shape (N,), with weight 0 for lost ones."""
        left = ~self.state.lost
        weights = np.zeros(x.shape)
        weights[left] = onto_simplex(x[left])
        return weights

    def of_left(self, reported: Mapping[str, float]) -> dict[str, float]:
        """Return the reported losses of clients that have not been lost since."""
        return {client: loss for client, loss in reported.items() if not self.state.lost[self.place[client]]}

    @property
    def loss_expected(self) -> Expected:
        """Schema of a reported loss. A client that reports another value fails in the phase.

        With ``largest_loss`` any number is accepted and clipped. Otherwise absurdly large values, and values below the
        lower bound of the objective, are rejected.
        """
        if self.settings.largest_loss is not None:
            return float
        return NumberSpec(
            minimum=max(self.objective.least_loss, -ABSURD),
            maximum=ABSURD,
            hint="losses change the clients' weights, so this one is rejected. Either the model has diverged (use a "
            "smaller step size), or the client sent a wrong loss; set algorithm.largest_loss to clip losses instead",
        )

    def heard(self, reported: Mapping[str, float]) -> NDArray[np.float64]:
        """Store losses of m clients, clipped if ``largest_loss`` is set. Return them in the given order, shape (m,)."""
        losses = np.array(list(reported.values()), np.float64)
        if self.settings.largest_loss is not None:
            losses = np.clip(losses, 0, self.settings.largest_loss)
        self.state.losses[self.places(reported)] = losses
        return losses

    def visited(self, clients: Iterable[str]) -> None:
        """Record that clients took part in a round."""
        self.state.unvisited += 1
        self.state.unvisited[self.places(clients)] = 0

    def metrics(self) -> dict[str, float]:
        """Return statistics of the weights, the longest absence of a remaining client, and the largest loss."""
        state, left = self.state, ~self.state.lost
        return {
            "largest_weight": float(state.weights.max()),
            "zero_weights": float(np.count_nonzero(state.weights[left] == 0)),
            "weights_entropy": entropy(state.weights),
            "longest_unvisited": float(state.unvisited[left].max()),
            "worst_reported_loss": float(np.fmax.reduce(state.losses)),
        }

    def client_metrics(self) -> dict[str, dict[str, float]]:
        """Return lambda_i and the last reported loss of each client."""
        weights, losses = self.state.weights.tolist(), self.state.losses.tolist()
        return {
            client: {"weight": weights[place], "reported_loss": losses[place]} for client, place in self.place.items()
        }


def entropy(weights: NDArray[np.float64]) -> float:
    """Return ``-sum_i lambda_i ln(lambda_i)``, with ``0 ln(0) = 0``."""
    positive = weights[weights > 0]
    return float(-(positive * np.log(positive)).sum())
