"""CODA+ and CODA, server halves.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 1 and 2; Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed
Stochastic AUC Maximization with Deep Neural Networks", ICML 2020 (CODASCA specification, sections 2.1 and 2.4).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from common.algorithms import AlgorithmSettings
from common.algorithms.codasca import AveragingSettings, CodaPlusSettings, CodaSettings, Stage
from common.expectation import ArraySpec
from common.objectives.auc import Moments
from server.algorithm import Conduct
from server.algorithms.staged import Staged


class CodaPlus(Staged):
    """Clients take local steps, and the server averages where they end: federated averaging for a saddle."""

    Settings: ClassVar[type[AlgorithmSettings]] = CodaPlusSettings
    settings: AveragingSettings

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.averages = self.settings.output == "average"
        if self.averages:
            self.need_everybody("output: average", "is the mean over all local iterates")

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """u <- sum_k lambda_k u^k; after the last round of a stage, the mean of all its local iterates."""
        u = self.point
        returns = {"change": u, "value": float} | ({"average": u} if ends and self.averages else {})
        values = {
            "prior": self.state.prior,
            "steps": stage.local_steps,
            "step_size": stage.step_size,
            "begins": begins,
            "ends": ends,
            "point": u,
        }
        sums = await self.visit(self.sample(), "train", returns, values, everybody=self.averages)
        if begins:
            await self.tell_others(sums.cohort, u)
        self.state.value = float(sums.mean("value"))
        self.point = sums.mean("average") if ends and self.averages else u + sums.mean("change")
        if ends:
            await self.renew_dual()

    async def renew_dual(self) -> None:
        """Nothing: alpha goes on as it is."""

    async def finish(self) -> None:
        """Return the mean of the iterates of the last stage also where the run ended before it did."""
        if self.averages and self.state.done:
            sums = await self.visit(self.fleet.all(), "average", {"average": self.point}, {}, everybody=True)
            self.point = sums.mean("average")


class Coda(CodaPlus):
    """CODA+ that computes alpha from the scores after each stage (section 2.4)."""

    Settings = CodaSettings
    settings: CodaSettings

    async def renew_dual(self) -> None:
        """alpha <- m_- - m_+, of the mixture of all clients; it stays where a class was not drawn."""
        replies = await self.fleet.all().ask(
            "score", point=self.point, returns={"moments": ArraySpec(np.float64, (4,))}
        )
        weights = self.weights()
        parts = [
            (weights[client], Moments(*np.asarray(reply["moments"]).tolist()))
            for client, reply in replies.items()
        ]
        if self.settings.dual_estimator == "mixture":
            parts = [(1.0, Moments.mixture(parts))]
        parts = [(weight, each) for weight, each in parts if each.has_both_classes]
        if not parts:
            return
        total = sum(weight for weight, _ in parts)
        alpha = sum(weight * (each.means[1] - each.means[0]) for weight, each in parts) / total
        auxiliary = self.state.auxiliary.copy()
        auxiliary[-1] = alpha
        self.state.auxiliary = auxiliary
