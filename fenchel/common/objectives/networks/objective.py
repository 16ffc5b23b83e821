"""The mean cross-entropy of a network's outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy
import torch
from numpy.typing import DTypeLike
from torch import nn

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.losses import Targets, class_indices
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.networks.flat import FlatNetwork, dense
from fenchel.common.objectives.objective import Objective

GRADIENTS = 1 << 24
"""Limit on the entries of sample gradients in memory at once, unless one gradient is larger: 64 MiB in float32."""


class NetworkObjective(Objective):
    """Mean cross-entropy of a network's outputs plus ``(l2/2) ||w||^2``.

    The objective is neither convex nor smooth, because ReLU has a corner, so no constants are known. It must not be
    used by several threads at once, because torch replaces the module's parameters during a call.

    Parameters
    ----------
    network
        Module that maps features, shape (n, m), to outputs, shape (n, classes), without buffers and random numbers.
        Only the shapes of its parameters matter, not their values.
    shard
        Shard of samples, possibly empty.
    kind
        Name of the objective, for errors.
    l2
        Weight of the ridge, at least 0.
    dtype
        Floating-point type of models and gradients.
    device
        Device of the computation.

    Attributes
    ----------
    least_loss
        Lower bound 0 of the cross-entropy.
    network
        The network as a function of a flat vector.
    """

    least_loss = 0.0

    def __init__(
        self, network: nn.Module, shard: Shard, *, kind: str, l2: float, dtype: DTypeLike, device: torch.device
    ) -> None:
        self.network = FlatNetwork(network, dtype, device)
        super().__init__(dimension=self.network.dimension, samples=shard.samples, dtype=dtype)
        self.l2 = l2
        self._kind, self._classes = kind, shard.classes
        self._features, self._targets = self._prepare(shard)

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        return self._converted(shard.features), class_indices(shard.labels, shard.classes, self._kind)

    @property
    def head(self) -> int:
        """Number of trailing parameters that form the last layer."""
        return self.network.head

    def initial(self, seed: int) -> Vector:
        """Return random parameters, shape (d,); see :meth:`FlatNetwork.initial`."""
        return self.network.initial(seed)

    def _chunks(
        self, features: Matrix, targets: Targets, rows: Indices, size: int | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        device, size = self.network.device, size or self.network.chunk
        for start in range(0, rows.size, size):
            chosen = rows[start : start + size]
            yield (torch.from_numpy(dense(features[chosen])).to(device), torch.from_numpy(targets[chosen]).to(device))

    def loss(self, w: Vector) -> float:
        """Return the mean loss of all samples at ``w``, shape (d,), or raise a DataError without samples."""
        self.require(self.samples)
        return self.evaluate(w).loss

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, shape (d,), or raise a DataError without samples."""
        self.require(rows.size)
        total, flat = 0.0, self.network.tensor(w)
        with torch.no_grad():
            for features, targets in self._chunks(self._features, self._targets, rows):
                outputs = self.network.outputs(flat, features)
                total += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
        return total / rows.size

    def decision_function(self, w: Vector, features: Matrix) -> Dense:
        """Return the network's outputs for prepared features, shape (n, classes)."""
        flat = self.network.tensor(w)
        with torch.no_grad():
            pieces = [self.network.outputs(flat, each) for each in self.network.chunks(self._converted(features))]
        return torch.cat(pieces).numpy(force=True) if pieces else np.empty((0, self._classes), self.dtype)

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the softmax of the outputs, shape (n, classes)."""
        return scipy.special.softmax(self.decision_function(w, features), axis=1)

    def _converted(self, features: Matrix) -> Matrix:
        converted: Matrix = features.astype(self.dtype, copy=False)
        return converted

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`."""
        self.require(rows.size)
        flat = self.network.tensor(w).requires_grad_()
        total = torch.zeros_like(flat)
        for features, targets in self._chunks(self._features, self._targets, rows):
            loss = nn.functional.cross_entropy(self.network.outputs(flat, features), targets, reduction="sum")
            total += torch.autograd.grad(loss / rows.size, flat)[0]
        result: Vector = total.numpy(force=True)
        if self.l2:
            result += self.l2 * w
        return result

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the gradient with clipped sample gradients, shape (d,); see :meth:`Objective.clipped_gradient`."""
        self.require(rows.size)
        flat = self.network.tensor(w)
        total = torch.zeros_like(flat)
        of_each = torch.func.vmap(torch.func.grad(self._sample_loss), in_dims=(None, 0, 0))
        size = max(1, min(self.network.chunk, GRADIENTS // self.dimension))
        for features, targets in self._chunks(self._features, self._targets, rows, size):
            gradients = of_each(flat, features, targets)
            norms = torch.linalg.vector_norm(gradients, dim=1)
            # Non-finite gradients count as zero, so that the clipping bound holds for every model.
            gradients[~torch.isfinite(norms)] = 0
            norms[~torch.isfinite(norms)] = 0
            # For a zero gradient the quotient is infinite, and clamping gives the factor 1.
            total += torch.clamp(bound / norms, max=1.0) @ gradients
        result: Vector = (total / rows.size).numpy(force=True)
        if self.l2:
            result += self.l2 * w
        return result

    def _sample_loss(self, flat: torch.Tensor, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        outputs = self.network.outputs(flat, features.unsqueeze(0))
        return nn.functional.cross_entropy(outputs, target.unsqueeze(0))

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return the metrics of ``w``, shape (d,), on ``shard`` or on the objective's own samples."""
        features, targets = (self._features, self._targets) if shard is None else self._prepare(shard)
        flat = self.network.tensor(w)
        loss_sum, correct = 0.0, 0
        with torch.no_grad():
            for chunk, wanted in self._chunks(features, targets, np.arange(targets.size)):
                outputs = self.network.outputs(flat, chunk)
                losses = nn.functional.cross_entropy(outputs, wanted, reduction="none")
                loss_sum += float(losses.sum(dtype=torch.float64))
                correct += int((outputs.argmax(dim=1) == wanted).sum())
        return Metrics(loss_sum=loss_sum, correct=correct, samples=targets.size)
