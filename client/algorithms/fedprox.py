"""FedProx, client half.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2, with mini-batch steps as the local solver (FedDCD specification, section 2.4).
"""

from __future__ import annotations

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.fedprox import FedProxSettings
from common.arrays import Vector
from common.values import Values


class FedProxClient(LocalTraining):
    """Mini-batch gradient descent on ``f_i(w) + (mu/2) ||w - x||^2`` from the global model x; no state."""

    settings: FedProxSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) + mu (w - x) ); return w and n_i."""
        x, w = model, model.copy()
        eta, mu = self.settings.step_size_at(self.round), self.settings.proximity
        for batch in self.batches():
            w -= eta * (self.gradient(w, batch) + mu * (w - x))
        return {"model": self.send(w, around=model).wire, "samples": self.objective.samples}
