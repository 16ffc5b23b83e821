"""Neural networks as functions of one flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import nn

from fenchel.common.arrays import Matrix, Vector, is_sparse
from fenchel.common.randomness import generator

CHUNK = 1024
"""Number of samples in one forward pass, which bounds the memory for activations."""


class FlatNetwork:
    """Neural network as a function of one flat vector of parameters.

    Parameters
    ----------
    network
        Module without buffers and random numbers. Only the shapes of its parameters matter, not their values.
    dtype
        Floating-point type of models.
    device
        Device of the computation.

    Attributes
    ----------
    module
        The module.
    chunk
        Largest number of samples in one forward pass.
    dimension
        Number d of parameters.
    head
        Number of trailing parameters that form the last layer.
    """

    def __init__(self, network: nn.Module, dtype: DTypeLike, device: torch.device) -> None:
        self.device, self.chunk = device, CHUNK
        self.module = network
        self._dtype = np.dtype(dtype)
        self._shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.dimension = sum(self._sizes)
        last = next(reversed(self._shapes)).rpartition(".")[0]
        self.head = sum(math.prod(shape) for name, shape in self._shapes.items() if name.rpartition(".")[0] == last)

    def initial(self, seed: int) -> Vector:
        """Draw initial parameters, shape (d,), uniformly from [-c, c] with c = 1/sqrt(inputs of a unit), as torch does.

        Normalisation layers start with factors 1 and offsets 0. The random numbers do not come from torch, so they do
        not depend on its version, and a float32 model is the rounded float64 model.
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
        """Return a copy of a model, shape (d,), as a tensor on the network's device."""
        # Copy, because a model may be a read-only view of received bytes, which torch does not accept.
        return torch.from_numpy(np.array(w, self._dtype)).to(self.device)

    def chunks(self, features: Matrix) -> Iterator[torch.Tensor]:
        """Yield dense or sparse features, shape (n, m), as tensors of at most ``chunk`` rows on the device."""
        for start in range(0, features.shape[0], self.chunk):
            yield torch.from_numpy(dense(features[start : start + self.chunk])).to(self.device)


def dense(features: Matrix) -> Matrix:
    """Return dense or sparse features as a contiguous array, shape (n, m)."""
    return features.toarray() if is_sparse(features) else np.ascontiguousarray(features)
