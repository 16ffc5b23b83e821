"""FedDyn, server half.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021,
Algorithm 1 (FedPDM specification, section 2.8). With the proximal operator it is FedPDM's hybrid aggregation (section
2.7, V2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.algorithms.feddyn import FedDynSettings
from common.arrays import Vector
from server.algorithm import Algorithm, Conduct
from server.algorithms.mbsgd import mean_samples
from server.cohort import Cohort


class FedDyn(Algorithm):
    """Clients minimise their bent objectives; the server corrects the mean by what all clients are bent by."""

    @dataclass
    class State(Algorithm.State):
        """The global model x, and the correction.

        Attributes
        ----------
        mean_dual
            h of the paper, shape (d,): after each round the mean of lambda_i over all clients, whoever took part.
        """

        mean_dual: Vector

    Settings = FedDynSettings
    settings: FedDynSettings
    state: State

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.regularizer = conduct.objective.regularizer

    def initial_state(self, model: Vector) -> State:
        """Begin with h = 0, as the clients begin with lambda_i = 0."""
        return self.State(self.downlink.kept(model, 1), np.zeros_like(model))

    async def admit(self, cohort: Cohort) -> None:
        """Newcomers have lambda_i = 0, so the mean of all lambda_i is h N_old / N_new."""
        clients = len(self.fleet.members)
        self.state.mean_dual = self.state.mean_dual * ((clients - len(cohort)) / clients)

    async def round(self, t: int) -> None:
        """Draw S_t; h <- h - (alpha/N) sum over S_t of (x_i - x); x <- mean over S_t of x_i, minus h / alpha.

        A client's new lambda_i counts if and only if its reply did, so that h stays the mean of all lambda_i.
        """
        x, alpha, clients = self.model, self.settings.alpha, len(self.fleet.members)
        replies = await self.sample().reduce(
            "train",
            model=self.downlink.wire(x, t),
            mean_samples=mean_samples(self.fleet),
            returns={"model": self.uplink.expected(x)},
            dtype=x.dtype,
        )
        sent = self.uplink.aggregate(replies, "model", x, t)
        covered = sent.coverage > 0
        self.state.mean_dual = self.state.mean_dual - alpha / clients * (sent.total - sent.coverage * x)
        new = np.where(covered, sent.mean(np.zeros_like(x)) - self.state.mean_dual / alpha, 0)
        if self.settings.regularizer_step == "server-prox":
            new = self.regularizer.prox(new, alpha)
        if self.uplink.holds:
            new = np.where(covered, new, x)
        self.model = self.downlink.kept(new.astype(x.dtype, copy=False), t + 1)
