"""What DRDM, DRFA and SCAFF-PD have in common: the clients' weights, and the dual step that moves them.

The weights lambda lie on the simplex and maximise ``sum_i lambda_i f_i(w)``: they grow where the loss is large
(DRDM specification, sections 2.2, 2.3 and 2.6). They never leave the server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from common.algorithms.drdm import RobustSettings
from common.arrays import Vector
from common.errors import SettingsError
from common.projection import onto_simplex
from common.settings.participation import AllClients, FixedSize
from server.algorithm import Algorithm, Conduct

log = logging.getLogger("fenchel.server")

_LOUD = 1.0  # a dual step above it takes all weight from clients that were not asked


class Robust(Algorithm):
    """An algorithm that minimises the largest of the clients' losses."""

    @dataclass
    class State(Algorithm.State):
        """The global model, and the weights.

        Attributes
        ----------
        weights
            lambda, shape (N,), float64, in the order of client ids.
        reported
            What each client last reported as its loss, shape (N,), float64; 0 before.
        mean_weights
            Mean of lambda over all rounds, shape (N,).
        mean_snapshot
            Mean of the snapshots over all rounds, shape (d,): the theorem is about these means, not about the last
            iterates (section 6.2, E7).
        starved
            Rounds since each client last took part, shape (N,).
        """

        weights: NDArray[np.float64]
        reported: NDArray[np.float64]
        mean_weights: NDArray[np.float64]
        mean_snapshot: Vector
        starved: NDArray[np.int64]

    settings: RobustSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = (
        "largest_weight",
        "zero_weights",
        "longest_starved",
        "worst_reported_loss",
    )
    fixed_fleet: ClassVar[str] = "the clients' weights are a point of a simplex with a corner for each client"

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        sampler = self.fleet.participation.sampler
        if not isinstance(sampler, AllClients | FixedSize):
            raise SettingsError(
                f"participation.sampler.kind: {sampler.kind} given, but {self.settings.name} draws "
                f"its cohorts itself, by "
                "the clients' weights; use kind: fixed with a size, or kind: all"
            )
        self.size = sampler.size if isinstance(sampler, FixedSize) else None
        self.place = {client: place for place, client in enumerate(self.fleet.members)}

    def initial_state(self, model: Vector) -> Any:
        """lambda_i = 1/N."""
        return self.State(**self.beginning(model))

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the first round."""
        clients = len(self.fleet.members)
        return {
            "model": model,
            "weights": np.full(clients, 1 / clients),
            "reported": np.zeros(clients),
            "mean_weights": np.zeros(clients),
            "mean_snapshot": np.zeros_like(model),
            "starved": np.zeros(clients, np.int64),
        }

    async def dual_step(self, t: int, snapshot: Vector) -> None:
        """Phase B: lambda <- Pi(lambda + tau gamma v), v an unbiased estimate of all losses at the snapshot."""
        everybody = len(self.fleet.members)
        cohort = self.fleet.sample(FixedSize(size=self.size or everybody), draw_name="dual cohort")
        replies = await cohort.ask("loss", model=snapshot, returns={"loss": float}, min_replies=0)
        state, losses = self.state, {}
        for client, reply in replies.items():
            loss = float(cast(float, reply["loss"]))
            most = self.settings.largest_loss
            losses[self.place[client]] = loss if most is None else float(np.clip(loss, 0, most))
        if losses:
            asked = np.array(list(losses), np.int64)
            told = np.array(list(losses.values()))
            v = (
                state.reported.copy()
                if self.settings.dual_estimator == "control-variate"
                else np.zeros(everybody)
            )
            v[asked] += everybody / len(asked) * (told - v[asked])
            state.reported = state.reported.copy()
            state.reported[asked] = told
            self._warn(t, told.max())
            state.weights = onto_simplex(state.weights + self.dual_length * v)
        state.mean_weights = state.mean_weights + (state.weights - state.mean_weights) / t
        state.mean_snapshot = state.mean_snapshot + ((snapshot - state.mean_snapshot) / t).astype(
            snapshot.dtype
        )

    @property
    def dual_length(self) -> float:
        """Length of a dual step: tau gamma."""
        return (self.settings.local_steps or 1) * self.settings.dual_step_size

    def _warn(self, t: int, loss: float) -> None:
        everybody = len(self.fleet.members)
        partial = self.size is not None and self.size < everybody
        loud = self.dual_length * everybody * loss
        if t == 1 and partial and loud > _LOUD and self.settings.dual_estimator == "plain":
            log.warning(
                "local_steps * dual_step_size * clients * loss is %.2g: above 1 whoever is not asked "
                "for its loss loses "
                "all its weight at once; keep it below 0.3 with a smaller algorithm.dual_step_size",
                loud,
            )

    def visited(self, clients: tuple[str, ...]) -> None:
        """Note who took part in a round."""
        starved = self.state.starved + 1
        starved[[self.place[client] for client in clients]] = 0
        self.state.starved = starved

    def metrics(self) -> dict[str, float]:
        """Return how uneven the weights are, and for how long somebody has not taken part."""
        state = self.state
        return {
            "largest_weight": float(state.weights.max()),
            "zero_weights": float(np.count_nonzero(state.weights == 0)),
            "longest_starved": float(state.starved.max()),
            "worst_reported_loss": float(state.reported.max()),
        }
