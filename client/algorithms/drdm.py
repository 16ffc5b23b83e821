"""DRDM and DRFA, client halves.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization", Algorithm 2
(DRDM specification, sections 2.1, 2.2 and 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.drdm import DRDMSettings, RobustSettings
from common.arrays import Vector
from common.payload import Values
from common.projection import onto


class RobustClient(LocalTraining):
    """What the clients of robust algorithms share: they report their loss."""

    settings: RobustSettings

    @answers("loss")
    def loss(self, model: Vector) -> Values:
        """Algorithm 3: return the mean loss of a fresh mini-batch at the snapshot; no state is touched."""
        size = self.settings.dual_batch_size
        if size is None or size >= self.objective.samples:
            return {"loss": self.objective.loss(model)}
        rows = self.generator("dual batch").choice(self.objective.samples, size, replace=False)
        return {"loss": self.objective.batch_loss(model, rows)}


class DRDMClient(RobustClient):
    """Local steps with dynamic regularisation; keeps the drift."""

    @dataclass
    class State:
        """The drift, in units of the model.

        Attributes
        ----------
        drift
            h_i = -g_i / mu, shape (d,): g_i estimates the gradient of f_i at this client's last local model.
        """

        drift: Vector

    settings: DRDMSettings

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
            omega_i, with ``lambda-scaled``.

        A client's new h_i counts if and only if its reply did, so that the server's H stays the mean of all h_i.
        """
        w, snapshot, mu, h = model.copy(), model, self.settings.regularization, self.state.drift
        eta = self.settings.step_size_at(self.round) / max(1.0, scale)
        for step, batch in enumerate(self.batches(), 1):
            w = onto(
                self.settings.constraint, w - eta * (scale * self.gradient(w, batch) + mu * (h + w - model))
            )
            if step == snapshot_step:
                snapshot = w.copy()
        change = w - model
        self.state.drift = h + change
        return _changes(change, snapshot - model, last=snapshot_step == self.settings.local_steps)


class DRFAClient(RobustClient):
    """Local gradient steps from the global model; keeps no state."""

    @answers("train")
    def train(self, model: Vector, snapshot_step: int) -> Values:
        """tau times w <- Pi_W(w - eta grad l_k(w)); return how far that went, and where it was after k' steps."""
        w, snapshot, eta = model.copy(), model, self.settings.step_size_at(self.round)
        for step, batch in enumerate(self.batches(), 1):
            w = onto(self.settings.constraint, w - eta * self.gradient(w, batch))
            if step == snapshot_step:
                snapshot = w.copy()
        return _changes(w - model, snapshot - model, last=snapshot_step == self.settings.local_steps)


def _changes(change: Vector, snapshot_change: Vector, *, last: bool) -> Values:
    """At the last step the snapshot is the end, and is not sent twice."""
    return {"change": change} if last else {"change": change, "snapshot_change": snapshot_change}
