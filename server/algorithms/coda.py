"""CODA+ and CODA, server halves.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 1 and 2; Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed
Stochastic AUC Maximization with Deep Neural Networks", ICML 2020 (CODASCA specification, sections 2.1 and 2.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from common.algorithms import AlgorithmSettings
from common.algorithms.coda import AveragingSettings, CodaPlusSettings, CodaSettings
from common.algorithms.stages import Stage
from common.errors import PayloadError
from common.expectation import ABSURD
from common.objectives.auc import Moments
from common.objectives.binary import BinaryObjective
from server.algorithm import Conduct
from server.algorithms.staged import Staged

_REPORT = {"positives": int, "negatives": int, "positive_sum": float, "negative_sum": float}

_ROUNDING = 1e-3  # relative, of a norm that was computed in float32


class CodaPlus(Staged):
    """Clients take local steps, and the server averages where they end: federated averaging for a saddle."""

    Settings: ClassVar[type[AlgorithmSettings]] = CodaPlusSettings
    settings: AveragingSettings

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.averages = self.settings.output == "average"

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
    objective: BinaryObjective

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.objective = cast(BinaryObjective, conduct.objective)
        self.place = {client: k for k, client in enumerate(self.fleet.members)}

    async def renew_dual(self) -> None:
        """alpha <- its maximiser at the scores of all clients; it stays where a class was not drawn.

        With the class prior that the clients' samples have that is m_- - m_+. A client whose report cannot be true has
        failed in this phase, and the others go on.
        """
        state = self.state
        replies = await self.fleet.all().ask("score", self._verify, point=self.point, returns=_REPORT)
        weights = self.weights()
        parts = [(weights[client], self._moments(client, reply)) for client, reply in replies.items()]
        if self.settings.dual_estimator == "mixture":
            mixture = Moments.mixture(parts)
            if not mixture.has_both_classes:
                return
            alpha = mixture.in_shares(state.share).alpha(state.prior)
        else:
            parts = [(weight, each) for weight, each in parts if each.has_both_classes]
            if not parts:
                return
            differences = [(weight, each.means[1] - each.means[0]) for weight, each in parts]
            alpha = sum(weight * each for weight, each in differences) / sum(weight for weight, _ in parts)
        floor = self.settings.dual_floor
        auxiliary = state.auxiliary.copy()
        auxiliary[-1] = alpha if floor is None else max(alpha, floor)
        state.auxiliary = auxiliary

    def _held(self, client: str) -> tuple[int, int, int]:
        """Return n_k, n_k^+ and how many samples the client draws for the new alpha."""
        k = self.place[client]
        n, n_positive = int(self.state.samples[k]), int(self.state.positives[k])
        size = self.settings.dual_batch_size
        return n, n_positive, n if size is None else min(size, n)

    def _verify(self, client: str, reply: Mapping[str, Any]) -> None:
        """Refuse what no client can honestly report of a batch.

        Raises
        ------
        PayloadError
            No batch of this client can have such counts, or no scores such sums.
        """
        n, n_positive, drawn = self._held(client)
        counts = reply["positives"], reply["negatives"]
        if sum(counts) != drawn or not all(
            0 <= count <= held for count, held in zip(counts, (n_positive, n - n_positive), strict=True)
        ):
            raise PayloadError(
                f"it reports {counts[0]} positive and {counts[1]} negative samples in the batch for the new alpha, but "
                f"drew {drawn} of {n} samples, {n_positive} of them positive"
            )
        sums = reply["positive_sum"], reply["negative_sum"]
        for total, count in zip(sums, counts, strict=True):
            low, high = self._bounds(count)
            if not low <= total <= high:
                raise PayloadError(
                    f"it reports scores of {count} samples that add up to {total:g}, but with objective.output: "
                    f"{self.objective.output} the sum is from {low:g} to {high:g}: either the model has diverged (take "
                    "smaller steps), or the reply is wrong"
                )

    def _moments(self, client: str, reply: Mapping[str, Any]) -> Moments:
        """Return what a client reports of its batch of m_s samples, in the class shares of its mini-batches."""
        n, n_positive, drawn = self._held(client)
        counts = reply["positives"], reply["negatives"]
        sums = reply["positive_sum"], reply["negative_sum"]
        rate = self.settings.positive_rate(n, n_positive)
        shares = (rate, n_positive), (1 - rate, n - n_positive)
        # Stratified batches have other shares than the shard; 1 where they are equal.
        factors = [share / (held / n) / drawn if held else 0.0 for share, held in shares]
        return Moments(
            *(count * factor for count, factor in zip(counts, factors, strict=True)),
            *(total * factor for total, factor in zip(sums, factors, strict=True)),
        )

    def _bounds(self, count: int) -> tuple[float, float]:
        """Return the least and the greatest sum that the scores of so many samples can have."""
        match self.objective.output:
            case "sigmoid":
                return 0.0, float(count)
            case "l2":  # all scores of the batch have the norm 1
                most = math.sqrt(count) * (1 + _ROUNDING)
            case "none":
                most = ABSURD * count  # an alpha of such scores is a number still, in float32 too
        return -most, most
