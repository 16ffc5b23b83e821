"""DRDM and DRFA, client halves.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization", Algorithms 2
and 3 (DRDM specification, sections 2.1, 2.2, 2.4 and 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.drdm import DRDMSettings, SampledByWeightSettings
from common.arrays import Vector
from common.projection import onto
from common.values import Values


class SampledClient(LocalTraining):
    """What the clients of DRDM and DRFA share: they report their loss."""

    settings: SampledByWeightSettings

    @answers("loss")
    def loss(self, model: Vector) -> Values:
        """Algorithm 3: return the mean loss of a fresh mini-batch at the snapshot, shape (d,); no state is touched.

        The penalty is left out: it is the same for all clients, so lambda is not meant to follow it.
        """
        size = self.settings.dual_batch_size
        if size is None or size >= self.objective.samples:
            return {"loss": self.objective.loss(model)}
        rows = self.generator("dual batch").choice(self.objective.samples, size, replace=False)
        return {"loss": self.objective.batch_loss(model, rows)}

    def displacements(self, change: Vector, snapshot_change: Vector, snapshot_step: int) -> Values:
        """Return what is sent; at the last step the snapshot is the end, and is not sent twice."""
        if snapshot_step == self.settings.local_steps:
            return {"change": change}
        return {"change": change, "snapshot_change": snapshot_change}


class DRDMClient(SampledClient):
    """Local steps with dynamic regularisation; keeps the drift."""

    @dataclass
    class State:
        """The drift, in units of the model.

        Attributes
        ----------
        drift
            h_i = -g_i / mu, shape (d,): g_i estimates the gradient of f_i at this client's last local model. In
            float64, as the server's mean of them; with ``lambda-table`` in the dtype of the model, as its table.
        """

        drift: Vector

    settings: DRDMSettings

    def initial_state(self) -> State:
        """h_i = 0."""
        table = self.settings.correction == "lambda-table"
        return self.State(np.zeros(self.objective.dimension, self.objective.dtype if table else np.float64))

    @answers("train")
    def train(self, model: Vector, snapshot_step: int, scale: float = 1.0) -> Values:
        """tau times w <- Pi_W(w - eta (omega grad l_i(w) + mu (h_i + w - wbar))); h_i <- h_i + w - wbar.

        Parameters
        ----------
        model
            wbar, shape (d,).
        snapshot_step
            k': after so many steps the snapshot is taken.
        scale
            omega_i, with ``lambda-scaled``; steps are shorter where it is above 1.

        A client's new h_i counts if and only if its reply did, so that the server's H stays the mean of all h_i.
        """
        w, snapshot, mu = model.copy(), model, self.settings.regularization
        h = self.state.drift.astype(model.dtype, copy=False)
        eta = self.settings.step_size_at(self.round) / max(1.0, scale)
        for step, batch in enumerate(self.batches(), 1):
            d = scale * self.gradient(w, batch) + mu * (h + w - model)
            w = onto(self.settings.constraint, w - eta * d)
            if step == snapshot_step:
                snapshot = w
        change = w - model
        if self.settings.correction != "none":
            self.state.drift = self.state.drift + change
        return self.displacements(change, snapshot - model, snapshot_step)

    @answers("forget_drift")
    def forget_drift(self) -> None:
        """h_i <- 0, as everybody's and the server's H: another client's h_i is lost for good (section 2.7)."""
        self.state = self.initial_state()


class DRFAClient(SampledClient):
    """Local gradient steps from the global model; keeps no state."""

    @answers("train")
    def train(self, model: Vector, snapshot_step: int) -> Values:
        """tau times w <- Pi_W(w - eta grad l_k(w)); return how far that went, and how far the first k' steps did."""
        w, snapshot, eta = model.copy(), model, self.settings.step_size_at(self.round)
        for step, batch in enumerate(self.batches(), 1):
            w = onto(self.settings.constraint, w - eta * self.gradient(w, batch))
            if step == snapshot_step:
                snapshot = w
        return self.displacements(w - model, snapshot - model, snapshot_step)
