"""Federated averaging, client half.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1, ClientUpdate.
"""

from __future__ import annotations

from collections.abc import Iterator

from client.algorithm import ClientAlgorithm, answers
from common.algorithms.fedavg import FedAvgSettings, LocalTrainingSettings
from common.arrays import Indices, Vector
from common.payload import Values


class LocalTraining(ClientAlgorithm):
    """What client halves share that take mini-batch steps: their batches."""

    settings: LocalTrainingSettings

    def batches(self) -> Iterator[Indices]:
        """Draw this round's mini-batches: E epochs, or a number of steps, of batches of size B."""
        steps = self.settings.local_steps
        epochs = None if steps else self.settings.local_epochs or 1
        return self.objective.batches(
            self.generator("batches"), epochs=epochs, steps=steps, batch_size=self.settings.batch_size
        )


class FedAvgClient(LocalTraining):
    """Mini-batch gradient descent from the global model; keeps no state."""

    settings: FedAvgSettings

    @answers("train")
    def train(self, model: Vector) -> Values:
        """ClientUpdate(k, w): run E epochs (or a number of steps) of batches of size B; return w and n_k."""
        w = model.copy()
        eta = self.settings.step_size_at(self.round)
        for batch in self.batches():
            w -= eta * self.objective.batch_gradient(w, batch)
        return {"model": w, "samples": self.objective.samples}
