"""FedPD, client half.

Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data", IEEE
Transactions on Signal Processing, 2021, Algorithm 1, with stochastic gradients as the local oracle (FedPDM
specification, section 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.fedpd import FedPDSettings
from common.arrays import Vector
from common.values import Values


class FedPDClient(LocalTraining):
    """Mini-batch gradient descent on ``p_i f_i(w) + <mu_i, w - x_i> + ||w - x_i||^2 / (2 eta)`` from x_i."""

    @dataclass
    class State:
        """What a client keeps.

        Attributes
        ----------
        dual
            mu_i, shape (d,): at a solution minus the gradient of p_i f_i; zeros in the beginning.
        anchor
            x_i (``x_{0,i}`` in the paper), shape (d,): what this client takes for the global model.
        """

        dual: Vector
        anchor: Vector

    settings: FedPDSettings

    @answers("begin")
    def begin(self, model: Vector) -> None:
        """x_i <- x: this client has just joined."""
        self.state.anchor = model.copy()

    @answers("train")
    def train(self, mean_samples: float, talks: bool, model: Vector | None = None) -> Values:
        """Descend from x_i; mu_i <- mu_i + (w - x_i) / eta; return z_i = w + eta mu_i, or go on from it.

        Parameters
        ----------
        mean_samples
            n / N, of which the weight p_i is made.
        talks
            Whether this round ends with communication; if not, x_i <- z_i.
        model
            x, the mean of all z_i, shape (d,), if the last round ended with communication: then x_i <- x.
        """
        state, eta = self.state, self.settings.proximal_step
        x = state.anchor if model is None else model
        w, step = x.copy(), self.settings.step_size_at(self.round)
        p = self.settings.weight(self.objective.samples, mean_samples)
        for batch in self.batches():
            w -= step * (p * self.gradient(w, batch) + state.dual + (w - x) / eta)
        state.dual = state.dual + (w - x) / eta
        state.anchor = w + eta * state.dual
        return {"model": state.anchor} if talks else {}
