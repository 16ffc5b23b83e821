"""Neural networks behind the same interface as linear models. The only module that imports torch.

A network is a ``torch.nn.Module`` that is never given values of its own: each call runs it on views into
the flat model vector, so a gradient comes back as one flat vector. The networks are those of the FedDCD
paper (a hidden layer without biases) and of the DRDM paper (two convolutions; its specification, 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import DTypeLike
from torch import nn

from common.arrays import Indices, Matrix, Vector
from common.data.shard import Shard
from common.errors import SettingsError
from common.objectives.losses import Targets, class_indices, require_classes
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.randomness import generator
from common.settings.objective import CnnSettings, MlpSettings

CHUNK = 1024
"""Samples that go through a network at once; bounds the memory that activations take."""

GRADIENTS = 1 << 24
"""Numbers that gradients of single samples may take at once: 64 MiB of float32."""


def build_network(settings: MlpSettings | CnnSettings, shard: Shard) -> NetworkObjective:
    """Return the network that the settings describe, on the data of one shard.

    Sets torch to one thread and to deterministic algorithms, for the whole process.

    Raises
    ------
    SettingsError
        The data are not for classification, or the images are not square.
    """
    require_classes(shard.classes, settings.kind)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    features = shard.features.shape[1]
    # On the device "meta" parameters have shapes but no values, and torch's random numbers stay untouched.
    with torch.device("meta"):
        network = (
            mlp(features, settings.hidden, shard.classes)
            if isinstance(settings, MlpSettings)
            else cnn(features, shard.classes)
        )
    return NetworkObjective(network, shard, kind=settings.kind, l2=settings.l2, dtype=settings.dtype)


def mlp(features: int, hidden: int, classes: int) -> nn.Sequential:
    """Return a network with one hidden layer and no biases."""
    return nn.Sequential(
        nn.Linear(features, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, classes, bias=False)
    )


def cnn(features: int, classes: int) -> nn.Sequential:
    """Return the network of the DRDM paper; 794 310 parameters for 784 features and 10 classes.

    Raises
    ------
    SettingsError
        The number of features is not the square of at least 4.
    """
    side = math.isqrt(features)
    if side * side != features or side < 4:
        raise SettingsError(
            f"objective.kind: cnn needs square grey images of at least 4x4 pixels, 784 features for 28x28, "
            f"but the data set has {features} features; use mlp or softmax"
        )
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


class NetworkObjective(Objective):
    """Mean cross-entropy of a network's outputs plus ``(l2/2) ||w||^2``.

    Neither convex nor smooth (ReLU has a corner), so no constants are known. One thread at a time
    may use an objective: torch puts the parameters into the module for the time of a call.

    Parameters
    ----------
    network
        Maps (n, features) to (n, classes). Only its parameters' shapes matter, not their values; it must
        have no buffers and draw no random numbers.
    shard
        The samples; may be empty.
    kind
        What the settings call it, for error messages.
    l2
        Weight of the ridge, at least 0.
    dtype
        Type of models, gradients and features.

    Raises
    ------
    SettingsError
        The data are not for classification.
    DataError
        A label is not a class.
    """

    def __init__(
        self, network: nn.Module, shard: Shard, *, kind: str, l2: float, dtype: DTypeLike = np.float32
    ) -> None:
        self._network = network
        self._shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        super().__init__(dimension=sum(self._sizes), samples=shard.samples, dtype=dtype)
        self.l2 = l2
        self._kind = kind
        self._features, self._targets = self._prepare(shard)

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        return features, class_indices(shard.labels, shard.classes, self._kind)

    def initial(self, seed: int) -> Vector:
        """Draw each layer uniformly from +-1/sqrt(inputs of a unit), as torch does; shape (d,).

        The numbers come from the project's own generator: they do not depend on torch's version, and
        a float32 model is the rounded float64 model.
        """
        source = generator(seed, "initial model")
        parts = []
        for name, shape in self._shapes.items():
            weight = self._shapes[name.removesuffix("bias") + "weight"] if name.endswith("bias") else shape
            bound = 1 / math.sqrt(math.prod(weight[1:]))
            parts.append(source.uniform(-bound, bound, math.prod(shape)))
        return np.concatenate(parts).astype(self.dtype)

    def _outputs(self, flat: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(flat, self._sizes)
        parameters = {
            name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        outputs: torch.Tensor = torch.func.functional_call(self._network, parameters, (features,))
        return outputs

    def _tensor(self, w: Vector) -> torch.Tensor:
        # A copy: models may be read-only views of received bytes, which torch does not accept.
        return torch.from_numpy(np.array(w, self.dtype))

    @staticmethod
    def _chunks(
        features: Matrix, targets: Targets, rows: Indices, size: int = CHUNK
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(0, rows.size, size):
            chosen = rows[start : start + size]
            piece = features[chosen]
            dense = piece.toarray() if sp.issparse(piece) else piece
            yield torch.from_numpy(dense), torch.from_numpy(targets[chosen])

    def loss(self, w: Vector) -> float:
        """Return the mean loss of the samples at ``w``, shape (d,); DataError if there are none."""
        self.require(self.samples)
        return self.evaluate(w).loss

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, shape (d,); DataError if there are none."""
        self.require(rows.size)
        total, flat = 0.0, self._tensor(w)
        with torch.no_grad():
            for features, targets in self._chunks(self._features, self._targets, rows):
                outputs = self._outputs(flat, features)
                total += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
        return total / rows.size

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`."""
        self.require(rows.size)
        flat = self._tensor(w).requires_grad_()
        total = torch.zeros_like(flat)
        for features, targets in self._chunks(self._features, self._targets, rows):
            loss = nn.functional.cross_entropy(self._outputs(flat, features), targets, reduction="sum")
            total += torch.autograd.grad(loss / rows.size, flat)[0]
        result: Vector = total.numpy()
        if self.l2:
            result += self.l2 * w
        return result

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the gradient with every sample's part clipped, shape (d,); see :meth:`Objective.clipped_gradient`."""
        self.require(rows.size)
        flat = self._tensor(w)
        total = torch.zeros_like(flat)
        of_each = torch.func.vmap(torch.func.grad(self._sample_loss), in_dims=(None, 0, 0))
        size = max(1, min(CHUNK, GRADIENTS // self.dimension))
        for features, targets in self._chunks(self._features, self._targets, rows, size):
            gradients = of_each(flat, features, targets)
            norms = torch.linalg.vector_norm(gradients, dim=1)
            # A gradient of 0 has the factor 1: infinity is cut off.
            total += torch.clamp(bound / norms, max=1.0) @ gradients
        result: Vector = (total / rows.size).numpy()
        if self.l2:
            result += self.l2 * w
        return result

    def _sample_loss(self, flat: torch.Tensor, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        outputs = self._outputs(flat, features.unsqueeze(0))
        return nn.functional.cross_entropy(outputs, target.unsqueeze(0))

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return how well ``w`` does on ``shard``, or on the objective's own samples."""
        features, targets = (self._features, self._targets) if shard is None else self._prepare(shard)
        flat = self._tensor(w)
        loss_sum, correct = 0.0, 0
        with torch.no_grad():
            for chunk, wanted in self._chunks(features, targets, np.arange(targets.size)):
                outputs = self._outputs(flat, chunk)
                losses = nn.functional.cross_entropy(outputs, wanted, reduction="none")
                loss_sum += float(losses.sum(dtype=torch.float64))
                correct += int((outputs.argmax(dim=1) == wanted).sum())
        return Metrics(loss_sum=loss_sum, correct=correct, samples=targets.size)
