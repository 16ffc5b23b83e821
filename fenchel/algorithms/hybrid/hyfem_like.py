"""The HyFEM-like algorithm.

A stand-in for Zhang, Yin, Hong, Chen, "Hybrid Federated Learning: Algorithms and Implementation", 2020, with
linear models, as a baseline of HyFDCA (docs/specifications/hyfdca.md, section 2.7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.hybrid.hybrid_fedavg import HybridFedAvg, HybridFedAvgClient, LocalDescentSettings
from fenchel.common.arrays import Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import Values


class HyFEMLikeSettings(LocalDescentSettings):
    """A stand-in for HyFEM (Zhang et al. 2020) with linear models: local models, tied to the global one."""

    name: Literal["hyfem-like"] = "hyfem-like"
    proximity: NonNegativeFloat = Field(
        1.0, description="weight mu of (mu/2) ||v_k - w||^2, which pulls local models towards the global one"
    )


class HyFEMLike(HybridFedAvg):
    """The server averages local models feature by feature, as in hybrid FedAvg; the clients differ."""

    Settings: ClassVar[type[AlgorithmSettings]] = HyFEMLikeSettings


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
        local = self.descended(self.state.local, pull=self.settings.proximity, anchor=model)
        self.state.local = local
        return {"model": local, "samples": self.objective.samples}
