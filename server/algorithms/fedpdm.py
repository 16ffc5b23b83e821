"""FedPDM, server half; with noise DP-FedPDM, with sparsified messages BSDP-FedPDM.

Li, Huang, Wang, Chi, Quek, "Privacy-preserving Federated Primal-Dual Learning for Non-convex and Non-smooth Problems
with Model Sparsification", Algorithms 1 and 2 (FedPDM specification, sections 2.3 to 2.7). Which of the three runs is a
matter of the settings ``uplink``, ``downlink`` and ``differential_privacy``: the algorithm is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from common.algorithms.fedpdm import FedPDMSettings
from common.arrays import Vector
from common.expectation import Expected
from common.values import SparseVector
from server.algorithm import Algorithm, Conduct
from server.cohort import Cohort


class FedPDM(Algorithm):
    """Each round a cohort descends on its augmented Lagrangians; the server takes a proximal step from the mean."""

    @dataclass
    class State(Algorithm.State):
        """The server's state; ``model`` is x0 as the clients know it.

        Attributes
        ----------
        mean_upload
            Aggregator ``stale``: the mean over all N clients of what each sent last, shape (d,), of which the
            initial model stands for those that sent nothing yet.
        mean_dual
            Aggregator ``hybrid``: the mean of all N dual variables, shape (d,).
        replicas
            Aggregator ``sampled`` with error feedback: what has come together of each client's upload, shape (d,).
        """

        mean_upload: Vector
        mean_dual: Vector
        replicas: dict[str, Vector] = field(default_factory=dict)

    Settings = FedPDMSettings
    settings: FedPDMSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = ("nonzeros", "coverage", "local_steps")

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.h = conduct.objective.regularizer
        self.aggregator = self.settings.aggregates(noisy=self.noisy)
        self.initial_model = conduct.initial_model
        self._figures: dict[str, float] = {}

    def initial_state(self, model: Vector) -> State:
        """x0 as given, of which the clients will know a part; nobody has sent anything, all dual variables are 0."""
        return self.State(self.downlink.kept(model, 1), model.copy(), np.zeros_like(model))

    async def round(self, t: int) -> None:
        """x0 <- prox_{h/rho}(u), of which the clients are sent a part; u is made of what S_t sent."""
        cohort = self.fleet.all() if t == 1 and self.settings.first_round == "all" else self.sample()
        u, covered, steps = await self._aggregate(cohort, t)
        x0 = self.h.prox(u, self.settings.penalty)  # (12)
        if self.uplink.holds:
            x0 = np.where(
                covered, x0, self.model
            )  # held after the prox, which would shrink it round by round
        self.model = self.downlink.kept(x0, t + 1)  # (27)
        self._figures = {
            "nonzeros": float(np.count_nonzero(self.model)),
            "coverage": float(covered.mean()),
            "local_steps": steps,
        }

    async def _aggregate(self, cohort: Cohort, t: int) -> tuple[Vector, NDArray[np.bool_], float]:
        """Return u, shape (d,), which of its coordinates somebody sent, shape (d,), and the mean of Q_i."""
        x0, rho, clients = self.model, self.settings.penalty, len(self.fleet.members)
        model = self.downlink.wire(x0, t)
        returns: dict[str, Expected] = {"upload": self.uplink.expected(x0), "steps": int}
        everything = np.ones(x0.shape, bool)
        if self.aggregator == "sampled" and self.settings.error_feedback == "ef21":
            replies = await cohort.ask("solve", model=model, returns=returns)
            for client, reply in replies.items():
                self._add_to_replica(client, cast(SparseVector | Vector, reply["upload"]), t)
            known = [self.state.replicas[client] for client in replies]
            return np.mean(known, axis=0), everything, float(replies.mean("steps"))
        sums = await cohort.reduce("solve", model=model, returns=returns, dtype=x0.dtype)
        steps = float(sums.mean("steps"))
        sent = self.uplink.aggregate(sums, "upload", x0, t)
        covered = sent.coverage > 0
        nothing = np.zeros_like(x0)
        if self.aggregator == "stale":  # the clients sent what changed
            self.state.mean_upload = self.state.mean_upload + sent.total / clients
            return self.state.mean_upload, everything, steps
        if self.aggregator == "sampled":
            return sent.mean(nothing), covered, steps  # (20), (23)
        self.state.mean_dual = self.state.mean_dual + rho / clients * (sent.coverage * x0 - sent.total)
        u = np.where(covered, sent.mean(nothing) - self.state.mean_dual / rho, nothing)
        return u, covered, steps

    def _add_to_replica(self, client: str, sent: SparseVector | Vector, t: int) -> None:
        """Add what a client sent to what has come together of its upload."""
        replica = self.state.replicas.setdefault(client, self.initial_model.copy())
        coordinates, values = self.uplink.entries(sent, self.model, t)
        replica[coordinates] += values

    async def admit(self, cohort: Cohort) -> None:
        """Take newcomers into the means over all clients: they have sent nothing, and their dual variables are 0."""
        everybody = len(self.fleet.members)
        before = everybody - len(cohort)
        share = before / everybody
        initial = self.initial_model
        self.state.mean_upload = share * self.state.mean_upload + (1 - share) * initial
        self.state.mean_dual = share * self.state.mean_dual

    def metrics(self) -> dict[str, float]:
        """Return how sparse the model is, which share of it somebody sent, and the mean of Q_i."""
        return dict(self._figures)
