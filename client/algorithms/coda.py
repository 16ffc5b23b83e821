"""CODA+ and CODA, client halves.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithm 2; Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed
Stochastic AUC Maximization with Deep Neural Networks", ICML 2020 (CODASCA specification, sections 2.1 and 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.algorithm import answers
from client.algorithms.staged import StagedClient
from common.algorithms.coda import AveragingSettings, CodaSettings
from common.arrays import Vector
from common.objectives.auc import AUXILIARY
from common.values import Values


class CodaPlusClient(StagedClient):
    """Local descent and ascent from the averaged point."""

    @dataclass
    class State:
        """What a client keeps within a stage.

        Attributes
        ----------
        centre
            v_0, where the stage began, shape (n,); its last entry is not used.
        iterates
            Sum of the local iterates of the stage, shape (n,), float64; shape (0,) where it is not wanted.
        counted
            How many they are.
        """

        centre: Vector
        iterates: Vector
        counted: int

    settings: AveragingSettings
    state: State

    def initial_state(self) -> State:
        """Begin without iterates."""
        wanted = self.length if self.settings.output == "average" else 0
        return self.State(self.zeros(), np.zeros(wanted), 0)

    @answers("begin_stage")
    def begin_stage(self, point: Vector) -> None:
        """Note where a stage has begun that this client did not begin itself."""
        self.state.centre = np.array(point)
        self.state.iterates[:] = 0
        self.state.counted = 0

    @answers("train")
    def train(
        self, prior: float, steps: int, step_size: float, begins: bool, ends: bool, point: Vector
    ) -> Values:
        """Start at u = u_{r-1}; I times u <- u - eta g(u), descent in v and ascent in alpha.

        Parameters
        ----------
        prior
            p.
        steps, step_size
            I and eta.
        begins, ends
            Whether a stage begins here, whose centre is then the point, and whether it ends.
        point
            u_{r-1}, shape (n,).

        Returns
        -------
        Values
            ``change``, u - u_{r-1}, and ``value``, the mean of F along the way; where a stage ends whose average is
            wanted, ``average`` of this client's iterates.
        """
        if begins:
            self.begin_stage(point)
        u, total = point.copy(), 0.0
        for batch in self.batches(steps):
            value, g = self.direction(u, batch, prior)
            u = self.stepped(u, g, step_size)
            total += value
            if self.state.iterates.size:
                self.state.iterates += u
                self.state.counted += 1
        reply: Values = {"change": u - point, "value": total / steps}
        return {**reply, **self.average()} if ends and self.state.iterates.size else reply

    def stepped(self, u: Vector, g: Vector, eta: float) -> Vector:
        """Return where a step leads: a gradient step on F and the proximal term."""
        return self.moved(u, self.pulled(g, u, self.state.centre), eta)

    @answers("average")
    def average(self) -> Values:
        """Return the mean of this client's iterates since the stage began, shape (n,)."""
        mean = self.state.iterates / self.state.counted
        return {"average": mean.astype(self.objective.dtype)}


class CodaClient(CodaPlusClient):
    """CODA: the step on the proximal term is exact, and alpha is computed anew after a stage."""

    settings: CodaSettings

    def stepped(self, u: Vector, g: Vector, eta: float) -> Vector:
        """Return where a step leads: a gradient step on F, then the proximal operator of the proximal term."""
        gamma, centre = self.settings.proximal_weight, self.state.centre
        u = self.moved(u, g, eta)
        u[:-1] = (u[:-1] + eta * gamma * centre[:-1]) / (1 + eta * gamma)
        return u

    @answers("score")
    def score(self, point: Vector) -> Values:
        """Draw m_s samples; return how many of either class they are, N_+ and N_-, and sums of scores, S_+ and S_-."""
        rows = self.large_batch(self.settings.dual_batch_size, "dual batch")
        scores, positive = self.objective.scores_of(point[:-AUXILIARY], rows)
        return {
            "positives": int(np.count_nonzero(positive)),
            "negatives": int(np.count_nonzero(~positive)),
            "positive_sum": float(np.sum(scores, where=positive, dtype=np.float64)),
            "negative_sum": float(np.sum(scores, where=~positive, dtype=np.float64)),
        }
