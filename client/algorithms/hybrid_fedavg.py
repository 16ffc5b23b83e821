"""FedAvg for data split by samples and features, client half (HyFDCA specification, section 2.7)."""

from __future__ import annotations

from client.algorithm import ClientAlgorithm, Place, answers
from client.descent import descend
from common.algorithms.hybrid_fedavg import LocalDescentSettings
from common.arrays import Vector
from common.objectives.linear import LinearObjective, require_one_score
from common.values import Values


class HybridFedAvgClient(ClientAlgorithm):
    """Stochastic gradient descent from the global model, on the client's samples and features; no state."""

    settings: LocalDescentSettings
    objective: LinearObjective

    def __init__(self, place: Place) -> None:
        require_one_score(place.objective, place.settings.name)
        super().__init__(place)

    @answers("tell_features")
    def tell_features(self) -> Values:
        """Return M_k, the global positions of the features held here."""
        return {"features": self.objective.features_held}

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Take H steps from w[M_k]: v <- v - eta_t (lambda v + l_i'(x_{k,i}^T v) x_{k,i}); return v and n_k."""
        return {"model": self.descended(model), "samples": self.objective.samples}

    def descended(self, start: Vector, *, pull: float = 0.0, anchor: Vector | None = None) -> Vector:
        """Return where this round's steps lead, shape (m,); see :func:`client.descent.descend`."""
        batches = self.objective.batches(
            self.generator("batches"), steps=self.settings.local_steps, batch_size=self.settings.batch_size
        )
        step_size = self.settings.step_size_at(self.round)
        return descend(self.objective, start, batches, step_size=step_size, pull=pull, anchor=anchor)
