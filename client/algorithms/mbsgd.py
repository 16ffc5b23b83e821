"""Mini-batch SGD, client half (FedDCD specification, section 2.4)."""

from __future__ import annotations

import numpy as np

from client.algorithm import answers
from client.algorithms.fedavg import LocalTraining
from common.algorithms.mbsgd import MiniBatchSGDSettings
from common.arrays import Vector
from common.values import Values


class MiniBatchSGDClient(LocalTraining):
    """The mean of several stochastic gradients at the global model; keeps no state."""

    settings: MiniBatchSGDSettings

    @answers("gradient")
    def mean_gradient(self, model: Vector, mean_samples: float) -> Values:
        """Return the mean of K stochastic gradients of p_i f_i at x, shape (d,).

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, of which the weight p_i is made.
        """
        total, steps = np.zeros_like(model), 0
        for batch in self.batches():
            total += self.gradient(model, batch)
            steps += 1
        p = self.settings.weight(self.objective.samples, mean_samples)
        return {"gradient": p * total / steps}
