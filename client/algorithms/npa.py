"""The naive parallel algorithm, client half.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, appendix C (CODASCA specification, section 2.3).
"""

from __future__ import annotations

from client.algorithm import answers
from client.algorithms.staged import StagedClient
from common.arrays import Vector
from common.values import Values


class NaiveClient(StagedClient):
    """One gradient on one batch; keeps no state."""

    @answers("gradient")
    def gradient(self, point: Vector, prior: float) -> Values:
        """Return G at the point, shape (n,), without the proximal term, which the server adds; and F."""
        (batch,) = self.batches(1)
        value, g = self.direction(point, batch, prior)
        return {"gradient": g, "value": value}
