"""CODA.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 1 and 2; Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed
Stochastic AUC Maximization with Deep Neural Networks", ICML 2020 (docs/specifications/codasca.md, sections 2.1 and
2.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self, cast

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from fenchel.algorithms.auc.coda_plus import AveragingSettings, CodaPlus, CodaPlusClient
from fenchel.algorithms.client_half import answers
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.errors import PayloadError
from fenchel.common.objectives.auc import AUXILIARY, Moments
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.wire.schema import ABSURD
from fenchel.common.wire.values import Values

_ROUNDING = 1e-3  # relative tolerance for rounding errors of a norm computed in float32


_REPORT = {"positives": int, "negatives": int, "positive_sum": float, "negative_sum": float}


class CodaSettings(AveragingSettings):
    """AUC maximisation in stages, CODA (Guo et al. 2020)."""

    name: Literal["coda"] = "coda"
    dual_batch_size: PositiveInt | None = Field(
        None, description="samples for the new alpha after a stage (m_s); null: the whole shard"
    )
    dual_estimator: Literal["mixture", "client-means"] = Field(
        "mixture",
        description="computation of the new alpha. mixture: from the mean scores of both classes over all clients; "
        "client-means: the mean of the clients' own values, as in the paper, which differs from mixture if "
        "clients differ, and omits clients without samples of both classes",
    )

    @model_validator(mode="after")
    def _estimator_knows_the_prior(self) -> Self:
        if self.prior is not None and self.dual_estimator == "client-means":
            raise ValueError(
                "dual_estimator: client-means takes differences of mean scores, which maximise the min-max function "
                f"only for the clients' own share of positive samples, but prior: {self.prior:g} is given; use mixture"
            )
        return self


class Coda(CodaPlus):
    """Server half: CODA+ that recomputes alpha from scores after each stage."""

    Settings = CodaSettings
    settings: CodaSettings
    objective: BinaryObjective

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.objective = cast(BinaryObjective, context.objective)

    async def renew_dual(self) -> None:
        """Set alpha to its maximiser at the scores of all clients, or keep it if no sample of a class was drawn.

        If the class prior is that of the samples, the maximiser is m_- - m_+. A client with an impossible report fails
        in this phase, and the others continue.
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
        auxiliary = state.auxiliary.copy()
        auxiliary[-1] = alpha
        state.auxiliary = auxiliary

    def _held(self, client: str) -> tuple[int, int, int]:
        """Return n_k, n_k^+ and the number of samples that the client draws for the new alpha."""
        k = self.place[client]
        n, n_positive = int(self.state.samples[k]), int(self.state.positives[k])
        size = self.settings.dual_batch_size
        return n, n_positive, n if size is None else min(size, n)

    def _verify(self, client: str, reply: Mapping[str, Any]) -> None:
        """Reject counts and sums of scores that are impossible for a batch of the client."""
        n, n_positive, drawn = self._held(client)
        counts = reply["positives"], reply["negatives"]
        if sum(counts) != drawn or not all(
            0 <= count <= held for count, held in zip(counts, (n_positive, n - n_positive), strict=True)
        ):
            raise PayloadError(
                f"the client reports {counts[0]} positive and {counts[1]} negative samples in the batch for the "
                f"new alpha, but it drew {drawn} of its {n} samples, {n_positive} of them positive. Do both sides "
                "run the same version of Fenchel?"
            )
        sums = reply["positive_sum"], reply["negative_sum"]
        for total, count in zip(sums, counts, strict=True):
            low, high = self._bounds(count)
            if not low <= total <= high:
                raise PayloadError(
                    f"the scores of {count} samples add up to {total:g}, but objective.output: "
                    f"{self.objective.output} allows a sum from {low:g} to {high:g}. Either the model has "
                    "diverged, so use a smaller step size, or the client sent a wrong reply"
                )

    def _moments(self, client: str, reply: Mapping[str, Any]) -> Moments:
        """Return the reported moments of a batch of m_s samples, weighted to the class shares of mini-batches."""
        n, n_positive, drawn = self._held(client)
        counts = reply["positives"], reply["negatives"]
        sums = reply["positive_sum"], reply["negative_sum"]
        rate = self.settings.positive_rate(n, n_positive)
        shares = (rate, n_positive), (1 - rate, n - n_positive)
        # Importance weights correct for stratified batches, whose class shares differ from those of the shard.
        factors = [share / (held / n) / drawn if held else 0.0 for share, held in shares]
        return Moments(
            *(count * factor for count, factor in zip(counts, factors, strict=True)),
            *(total * factor for total, factor in zip(sums, factors, strict=True)),
        )

    def _bounds(self, count: int) -> tuple[float, float]:
        """Return bounds on the sum of the scores of ``count`` samples."""
        match self.objective.output:
            case "sigmoid":
                return 0.0, float(count)
            case "l2":  # L2 normalisation gives the scores of a batch unit norm
                most = math.sqrt(count) * (1 + _ROUNDING)
            case "none":
                most = ABSURD * count  # this bound keeps alpha finite, also in float32
        return -most, most


class CodaClient(CodaPlusClient):
    """Client half of CODA, with an exact step on the proximal term, and alpha recomputed after a stage."""

    settings: CodaSettings

    def stepped(self, u: Vector, g: Vector, eta: float) -> Vector:
        """Take a gradient step on F, in place, then the proximal operator of the proximal term."""
        gamma, centre = self.settings.proximal_weight, self.state.centre
        u -= eta * g
        u[:-1] = (u[:-1] + eta * gamma * centre[:-1]) / (1 + eta * gamma)
        return u

    @answers("score")
    def score(self, point: Vector) -> Values:
        """Draw m_s samples; return the numbers N_+ and N_- of each class, and the sums of scores S_+ and S_-."""
        objective, size = self.objective, self.settings.dual_batch_size
        rows = objective.all_rows
        if size is not None and size < objective.samples:
            rows = self.generator("dual batch").choice(objective.samples, size, replace=False)
        scores, positive = objective.scores(point[:-AUXILIARY], rows)
        return {
            "positives": int(np.count_nonzero(positive)),
            "negatives": int(np.count_nonzero(~positive)),
            "positive_sum": float(np.sum(scores, where=positive, dtype=np.float64)),
            "negative_sum": float(np.sum(scores, where=~positive, dtype=np.float64)),
        }
