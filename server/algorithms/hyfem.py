"""The HyFEM-like algorithm, server half.

A stand-in for Zhang, Yin, Hong, Chen, "Hybrid Federated Learning: Algorithms and Implementation", 2020, with
linear models, as a baseline of HyFDCA (HyFDCA specification, section 2.7).
"""

from __future__ import annotations

from typing import ClassVar

from common.algorithms import AlgorithmSettings
from common.algorithms.hyfem import HyFEMLikeSettings
from server.algorithms.hybrid_fedavg import HybridFedAvg


class HyFEMLike(HybridFedAvg):
    """The server averages local models feature by feature, as in hybrid FedAvg; the clients differ."""

    Settings: ClassVar[type[AlgorithmSettings]] = HyFEMLikeSettings
