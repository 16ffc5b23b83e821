"""The HyFEM-like algorithm.

A substitute for Zhang, Yin, Hong, Chen, "Hybrid Federated Learning: Algorithms and Implementation", 2020, with
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
    """Linear substitute for HyFEM (Zhang et al. 2020)."""

    name: Literal["hyfem-like"] = "hyfem-like"
    proximity: NonNegativeFloat = Field(
        1.0, description="weight mu of (mu/2) ||v_k - w||^2, which pulls local models towards the global one"
    )


class HyFEMLike(HybridFedAvg):
    """Server half, the same as that of hybrid FedAvg."""

    Settings: ClassVar[type[AlgorithmSettings]] = HyFEMLikeSettings


class HyFEMLikeClient(HybridFedAvgClient):
    """Client half: stochastic gradient descent on a local model with a penalty on its distance to the global one."""

    @dataclass
    class State:
        """Local model.

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
