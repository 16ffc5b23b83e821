"""FedDyn, client half.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021,
Algorithm 1, with mini-batch steps as the local solver (FedPDM specification, section 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.feddyn import FedDynSettings
from common.arrays import Vector
from common.values import Values


class FedDynClient(LocalTraining):
    """Mini-batch gradient descent on ``p_i f_i(w) - <lambda_i, w> + (alpha/2) ||w - x||^2`` from the global x."""

    @dataclass
    class State:
        """The linear term.

        Attributes
        ----------
        dual
            lambda_i, shape (d,): the gradient of p_i f_i where this client's last solve ended; zeros before.
        """

        dual: Vector

    settings: FedDynSettings

    @answers("train")
    def train(self, model: Vector, mean_samples: float) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) - lambda_i + alpha (w - x) ); renew lambda_i; return w.

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, of which the weight p_i is made.

        lambda_i is renewed from what left this client, so that the server's h stays the mean of all lambda_i also
        where uploads are sparse or carry noise (FedPDM specification, section 2.7, V1 and V2).
        """
        x, w, alpha = model, model.copy(), self.settings.alpha
        eta = self.settings.step_size_at(self.round)
        p = self.settings.weight(self.objective.samples, mean_samples)
        for batch in self.batches():
            w -= eta * (p * self.gradient(w, batch) - self.state.dual + alpha * (w - x))
        sent = self.send(w, around=x)
        self.state.dual[sent.coordinates] -= alpha * (sent.values - x[sent.coordinates])
        return {"model": sent.wire}
