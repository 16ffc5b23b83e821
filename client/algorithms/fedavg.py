"""Federated averaging, client half.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1, ClientUpdate. FedMiD, whose steps end with the proximal operator
of the non-smooth term: Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 1 (FedPDM
specification, section 2.8).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from client.algorithm import ClientAlgorithm, answers
from client.uplink import Sent
from common.algorithms.fedavg import FedAvgSettings, LocalTrainingSettings
from common.arrays import Indices, Vector
from common.objectives.regularizer import Zero
from common.privacy.sensitivity import DualDifference, LocalMap
from common.values import Values


class LocalTraining(ClientAlgorithm):
    """What client halves share that take mini-batch steps: batches, stochastic gradients, the way up."""

    settings: LocalTrainingSettings

    @property
    def clip(self) -> float | None:
        """G, the bound to which each sample's gradient is clipped; ``None``: nothing is clipped."""
        return None if self.uplink.protection is None else self.uplink.protection.clip_gradient

    def batches(self) -> Iterator[Indices]:
        """Draw this round's mini-batches: E epochs, or a number of steps, of batches of size B."""
        steps = self.settings.local_steps
        epochs = None if steps else self.settings.local_epochs or 1
        return self.objective.batches(
            self.generator("batches"),
            epochs=epochs,
            steps=steps,
            batch_size=self.settings.batch_size,
            draw=self.settings.batches,
        )

    def smooth_gradient(self, w: Vector, batch: Indices) -> Vector:
        """Return the stochastic gradient g_i(w) of the client's objective, shape (d,), clipped sample by sample.

        Parameters
        ----------
        w
            Shape (d,).
        batch
            Rows of the shard.
        """
        if self.clip is None:
            return self.objective.batch_gradient(w, batch)
        return self.objective.clipped_gradient(w, batch, self.clip)

    def gradient(self, w: Vector, batch: Indices) -> Vector:
        """Return :meth:`smooth_gradient`, plus a subgradient of h where the settings ask for one, shape (d,)."""
        g = self.smooth_gradient(w, batch)
        h = self.objective.regularizer
        if self.settings.takes_subgradient and not isinstance(h, Zero):
            g += h.subgradient(w)
        return g

    def send(self, vector: Vector, *, around: Vector, minus: Vector | None = None) -> Sent:
        """Return what leaves of a vector; see :meth:`client.uplink.ClientUplink.send`."""
        return self.uplink.send(
            vector,
            self.round,
            around=around,
            minus=minus,
            sensitivity=self.sensitivity(),
            largest=self.largest,
            occasion=self.occasion,
        )

    def sensitivity(self) -> float | None:
        """Return how far one sample can move what this round sends; ``None``: nobody needs to know."""
        protection = self.uplink.protection
        if protection is None:
            return None
        return protection.sensitivity(self.local_map(), DualDifference())[0]

    def local_map(self) -> LocalMap:
        """Return what this round does to the gradients."""
        return self.settings.local_map(self.round, self.objective.samples, noisy=self.uplink.noisy)


class FedAvgClient(LocalTraining):
    """Mini-batch gradient descent from the global model; keeps no state."""

    settings: FedAvgSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        """ClientUpdate(k, w): run E epochs (or a number of steps) of batches of size B; return w and n_k.

        A step is w <- w - eta g_k(w), or with FedMiD w <- prox_{eta h}(w - eta g_k(w)).
        """
        w = model
        eta, prox = self.settings.step_size_at(self.round), self.settings.regularizer_step == "prox"
        for batch in self.batches():
            step = self.gradient(w, batch)  # owned here: its memory becomes the next w
            step *= eta
            w = np.subtract(w, step, out=step)
            if prox:
                w = self.objective.regularizer.prox(w, 1 / eta)
        return {"model": self.send(w, around=model).wire, "samples": self.objective.samples}
