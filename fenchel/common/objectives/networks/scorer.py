"""Neural networks as scorers."""

from __future__ import annotations

import numpy as np
import torch

from fenchel.common.arrays import Matrix, Vector
from fenchel.common.objectives.binary import PullBack
from fenchel.common.objectives.networks.flat import FlatNetwork


class NetworkScorer:
    """Scorer that is a neural network with one output. It must not be used by several threads at once.

    Parameters
    ----------
    network
        Network that maps features, shape (n, m), to outputs, shape (n, 1).
    """

    def __init__(self, network: FlatNetwork) -> None:
        self.network = network
        self.dimension, self.head = network.dimension, network.head

    def initial(self, seed: int) -> Vector:
        """Return random weights, shape (d,); see :meth:`FlatNetwork.initial`."""
        return self.network.initial(seed)

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return the outputs, shape (n,), for features of shape (n, m)."""
        flat = self.network.tensor(w)
        with torch.no_grad():
            pieces = [self.network.outputs(flat, chunk)[:, 0] for chunk in self.network.chunks(features)]
        return torch.cat(pieces).numpy(force=True) if pieces else np.empty(0, w.dtype)

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return the outputs, shape (n,), and their vector-Jacobian product.

        If there are more samples than ``network.chunk``, the product repeats the forward pass chunk by chunk, so that
        the memory for activations stays bounded.
        """
        flat = self.network.tensor(w).requires_grad_()
        if features.shape[0] <= self.network.chunk:
            outputs = self.network.outputs(flat, next(self.network.chunks(features)))[:, 0]

            def at_once(slopes: Vector) -> Vector:
                wanted = torch.from_numpy(slopes).to(self.network.device)
                return torch.autograd.grad(outputs, flat, wanted)[0].numpy(force=True)

            return outputs.numpy(force=True), at_once

        def by_chunks(slopes: Vector) -> Vector:
            wanted = torch.split(torch.from_numpy(slopes).to(self.network.device), self.network.chunk)
            total = torch.zeros_like(flat)
            for chunk, piece in zip(self.network.chunks(features), wanted, strict=True):
                total += torch.autograd.grad(self.network.outputs(flat, chunk)[:, 0], flat, piece)[0]
            return total.numpy(force=True)

        return self.scores(w, features), by_chunks
