"""The HyFEM-like algorithm, client half (HyFDCA specification, section 2.7)."""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.hybrid_fedavg import HybridFedAvgClient
from common.algorithms.hyfem import HyFEMLikeSettings
from common.arrays import Vector
from common.values import Values


class HyFEMLikeClient(HybridFedAvgClient):
    """Stochastic gradient descent on a local model that is pulled towards the global one."""

    @dataclass
    class State:
        """The local model.

        Attributes
        ----------
        local
            v_k, shape (m,); zeros before the first round.
        """

        local: Vector

    settings: HyFEMLikeSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Take H steps from v_k on l_i(x_{k,i}^T v) + (lambda/2) ||v||^2 + (mu/2) ||v - w[M_k]||^2."""
        local = self.descended(self.state.local, pull=self.settings.matching, anchor=model)
        self.state.local = local
        return {"model": local, "samples": self.objective.samples}
