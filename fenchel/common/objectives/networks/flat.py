"""A network as a function of one flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import DTypeLike
from torch import nn

from fenchel.common.arrays import Matrix, Vector
from fenchel.common.randomness import generator

CHUNK = 1024
"""Samples that go through a network at once; bounds the memory that activations take."""

CPU = torch.device("cpu")


class FlatNetwork:
    """A network as a function of one flat vector.

    chunk: samples that go through it at once, ``CHUNK``.
    head: how many of its last numbers belong to the last layer.

    Parameters
    ----------
    network
        Module of which only the parameters' shapes matter. It must have no buffers and draw no random numbers.
    device
        Device of the computation.
    """

    def __init__(self, network: nn.Module, dtype: DTypeLike, device: torch.device = CPU) -> None:
        self.device, self.chunk = device, CHUNK
        self.module = network
        self._dtype = np.dtype(dtype)
        self._shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.dimension = sum(self._sizes)  # length d of the vector
        last = next(reversed(self._shapes)).rpartition(".")[0]
        self.head = sum(math.prod(shape) for name, shape in self._shapes.items() if name.rpartition(".")[0] == last)

    def initial(self, seed: int) -> Vector:
        """Draw each layer uniformly from +-1/sqrt(inputs of a unit), as torch does; shape (d,).

        Layers that normalise begin with factors 1 and offsets 0, and draw nothing. The numbers come from the
        project's own generator: they do not depend on torch's version, and a float32 model is the rounded
        float64 model.
        """
        source = generator(seed, "initial model")
        parts = []
        for name, shape in self._shapes.items():
            weight = self._shapes[name.removesuffix("bias") + "weight"] if name.endswith("bias") else shape
            if len(weight) == 1:
                parts.append(np.full(shape, 0.0 if name.endswith("bias") else 1.0))
                continue
            bound = 1 / math.sqrt(math.prod(weight[1:]))
            parts.append(source.uniform(-bound, bound, math.prod(shape)))
        return np.concatenate(parts).astype(self._dtype)

    def outputs(self, flat: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs for features of shape (n, m), with the parameters in ``flat``, shape (d,)."""
        pieces = torch.split(flat, self._sizes)
        parameters = {
            name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        outputs: torch.Tensor = torch.func.functional_call(self.module, parameters, (features,))
        return outputs

    def tensor(self, w: Vector) -> torch.Tensor:
        """Return a model as a tensor of its own, on the device."""
        # Copy, because a model may be a read-only view of received bytes, which torch does not accept.
        return torch.from_numpy(np.array(w, self._dtype)).to(self.device)

    def chunks(self, features: Matrix) -> Iterator[torch.Tensor]:
        """Go through features, dense or sparse, of shape (n, m), in pieces of at most ``chunk`` rows on the device."""
        for start in range(0, features.shape[0], self.chunk):
            yield torch.from_numpy(dense(features[start : start + self.chunk])).to(self.device)


def dense(features: Matrix) -> Matrix:
    """Return features as an array that torch takes, shape (n, m)."""
    return features.toarray() if sp.issparse(features) else np.ascontiguousarray(features)
