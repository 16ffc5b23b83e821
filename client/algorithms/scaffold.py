"""SCAFFOLD, client half.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 (FedDCD specification, section 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.scaffold import ScaffoldSettings
from common.arrays import Vector
from common.values import Values


class ScaffoldClient(LocalTraining):
    """Mini-batch gradient descent on ``p_i f_i``, corrected by what all clients do and this one does not."""

    @dataclass
    class State:
        """The control variate.

        Attributes
        ----------
        control
            c_i, shape (d,): the gradient of p_i f_i, as this client last saw it; zeros before.
        """

        control: Vector

    settings: ScaffoldSettings

    @answers("train")
    def train(self, model: Vector, mean_samples: float, control: Vector | None = None) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) - c_i + c ); renew c_i; return what changed.

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, of which the weight p_i is made.
        control
            c, shape (d,); absent if the correction is ``none``.

        What is changed on its way is sent alone: c_i is then formed from what the server received, which forms its
        change by itself (FedPDM specification, section 2.8).
        """
        x, w = model, model.copy()
        eta, steps = self.settings.step_size_at(self.round), 0
        p = self.settings.weight(self.objective.samples, mean_samples)
        correction = 0.0 if control is None else control - self.state.control
        for batch in self.batches():
            w -= eta * (p * self.gradient(w, batch) + correction)
            steps += 1
        if self.uplink.changes:
            sent = self.send(w, around=x)
            if control is not None:
                chosen = sent.coordinates
                self.state.control[chosen] += (x[chosen] - sent.values) / (steps * eta) - control[chosen]
            return {"model": sent.wire}
        if control is None:
            return {"model_change": w - x}
        before = self.state.control
        if self.settings.correction == "option-i":
            self.state.control = p * self.gradient(x, self.objective.all_rows)
        else:
            self.state.control = before - control + (x - w) / (steps * eta)
        return {"model_change": w - x, "control_change": self.state.control - before}
