"""SCAFF-PD, client half.

Yu, Karimireddy, Ma, Jordan, "SCAFF-PD: Communication Efficient Fair and Robust Federated Learning", 2023, as the DRDM
specification describes it (section 2.8); not checked against the original.
"""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.drdm import ScaffPDSettings
from common.arrays import Vector
from common.projection import onto
from common.values import Values


class ScaffPDClient(LocalTraining):
    """Keeps the model and its own gradient between the two phases of a round."""

    @dataclass
    class State:
        """What the local steps begin with.

        Attributes
        ----------
        start
            x^r, shape (d,).
        gradient
            c_k = grad f_k(x^r), shape (d,).
        """

        start: Vector
        gradient: Vector

    settings: ScaffPDSettings

    @answers("gradient")
    def full_gradient(self, model: Vector) -> Values:
        """Return the loss and the gradient of the whole shard at x^r."""
        self.state.start = model.copy()
        self.state.gradient = self.objective.gradient(model)
        return {"loss": self.objective.loss(model), "gradient": self.state.gradient}

    @answers("train")
    def train(self, mean_gradient: Vector) -> Values:
        """J times u <- u - eta (grad l_k(u) - c_k + cbar), from x^r; return how far that went.

        Parameters
        ----------
        mean_gradient
            cbar, the gradients weighted by lambda, shape (d,).
        """
        x = self.state.start
        u, eta = x.copy(), self.settings.step_size_at(self.round)
        correction = mean_gradient - self.state.gradient
        for batch in self.batches():
            u = onto(self.settings.constraint, u - eta * (self.gradient(u, batch) + correction))
        return {"change": u - x}
