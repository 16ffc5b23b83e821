"""FedProx, server half.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (FedDCD specification, section 2.4).
"""

from __future__ import annotations

from typing import ClassVar

from common.algorithms import AlgorithmSettings
from common.algorithms.fedprox import FedProxSettings
from server.algorithms.fedavg import FedAvg


class FedProx(FedAvg):
    """The server averages local models, as in FedAvg; the clients differ."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedProxSettings
