"""Neural networks behind the same interface as linear models. The only module that imports torch.

A network is a ``torch.nn.Module`` that is never given values of its own: each call runs it on views into
the flat model vector, so a gradient comes back as one flat vector. The networks are those of the FedDCD
paper (a hidden layer without biases) and of the DRDM paper (two convolutions; its specification, 5.1).

Models, samples and results are NumPy arrays. With the device ``cuda`` each call moves the model and its batch there,
and the gradient back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import DTypeLike
from torch import nn

from common.arrays import Indices, Matrix, Vector
from common.data.shard import Shard
from common.errors import SettingsError
from common.objectives.binary import PullBack
from common.objectives.losses import Targets, class_indices, require_classes
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.randomness import generator
from common.settings.objective import (
    CnnScorer,
    CnnSettings,
    DenseNetScorer,
    MlpScorer,
    MlpSettings,
    ResNetScorer,
)

DeviceName: TypeAlias = Literal["cpu", "cuda", "auto"]

CHUNK = 1024
"""Samples that go through a network at once; bounds the memory that activations take."""

CPU = torch.device("cpu")

GRADIENTS = 1 << 24
"""Numbers that gradients of single samples may take at once: 64 MiB of float32."""


def build_network(settings: MlpSettings | CnnSettings, shard: Shard) -> NetworkObjective:
    """Return the network that the settings describe, on the data of one shard.

    Sets torch to one thread and to deterministic algorithms, for the whole process.

    Raises
    ------
    SettingsError
        The data are not for classification, the images are not square, or there is no such device.
    """
    require_classes(shard.classes, settings.kind)
    device = find_device(settings.device)
    features = shard.features.shape[1]
    # On the device "meta" parameters have shapes but no values, and torch's random numbers stay untouched.
    with torch.device("meta"):
        network = (
            mlp(features, settings.hidden, shard.classes)
            if isinstance(settings, MlpSettings)
            else cnn(features, shard.classes)
        )
    return NetworkObjective(
        network, shard, kind=settings.kind, l2=settings.l2, dtype=settings.dtype, device=device
    )


def build_scorer(
    settings: MlpScorer | CnnScorer | ResNetScorer | DenseNetScorer,
    features: int,
    dtype: DTypeLike,
    device: DeviceName = "cpu",
) -> NetworkScorer:
    """Return the network with one output that the settings describe.

    Sets torch to one thread and to deterministic algorithms, for the whole process.

    Raises
    ------
    SettingsError
        The images are not square, or there is no such device.
    """
    found = find_device(device)
    with torch.device("meta"):
        network = _scoring(settings, features)
    return NetworkScorer(FlatNetwork(network, dtype, found))


def _scoring(settings: MlpScorer | CnnScorer | ResNetScorer | DenseNetScorer, features: int) -> nn.Sequential:
    match settings:
        case MlpScorer():
            return mlp(features, settings.hidden, 1, biases=settings.biases)
        case CnnScorer():
            return cnn(features, 1)
        case ResNetScorer():
            return resnet20(features, settings.channels)
        case DenseNetScorer():
            return densenet121(features, settings.channels)


def find_device(name: DeviceName) -> torch.device:
    """Return the device that the settings name, and set torch up so that equal input gives equal bits on it.

    Raises
    ------
    SettingsError
        ``cuda`` is asked for, and torch sees no GPU.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no GPU with a driver"
        raise SettingsError(
            f"objective.device: cuda given, but torch {torch.__version__} on this machine {built}; use cpu, or auto, "
            "which takes a GPU where there is one"
        )
    # Read when CUDA starts: without it the products of matrices may differ from call to call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False  # which would round the factors of convolutions to 11 bits
    return torch.device("cuda")


def mlp(features: int, hidden: int, classes: int, *, biases: bool = False) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(
        nn.Linear(features, hidden, bias=biases), nn.ReLU(), nn.Linear(hidden, classes, bias=biases)
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


GROUPS = 8
"""Groups of channels that are normalised together. Unlike those of batches, their statistics are no state."""


class Residual(nn.Module):
    """Two 3x3 convolutions around which the input passes; where its shape changes, every second pixel and zeros."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.more = (1, 0) if inputs == outputs else (2, outputs - inputs)
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``relu(x + inner(x))``."""
        around = x[:, :, :: self.stride, :: self.stride]
        if self.more:
            around = nn.functional.pad(around, (0, 0, 0, 0, 0, self.more))
        return torch.relu(around + self.inner(x))


def resnet20(features: int, channels: int) -> nn.Sequential:
    """Return ResNet-20 for small images (He et al. 2016, section 4.2), with one output and normalised groups.

    Raises
    ------
    SettingsError
        The images are not square, or smaller than 4x4 pixels.
    """
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    return nn.Sequential(
        nn.Unflatten(1, (channels, *_square(features, channels, 4, "resnet20"))),
        nn.Conv2d(channels, 16, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, 16),
        nn.ReLU(),
        *(Residual(inputs, outputs) for inputs, outputs in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 1),
    )


class Dense(nn.Module):
    """A layer of DenseNet: its output is its input and 32 channels more."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.GroupNorm(GROUPS, inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, 128, 1, bias=False),
            nn.GroupNorm(GROUPS, 128),
            nn.ReLU(),
            nn.Conv2d(128, 32, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the channels of x and those of ``inner(x)``."""
        return torch.cat([x, self.inner(x)], 1)


def densenet121(features: int, channels: int) -> nn.Sequential:
    """Return DenseNet-121 (Huang et al. 2017, table 1), with one output and normalised groups.

    Raises
    ------
    SettingsError
        The images are not square, or smaller than 32x32 pixels.
    """
    layers: list[nn.Module] = [
        nn.Unflatten(1, (channels, *_square(features, channels, 32, "densenet121"))),
        nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        nn.GroupNorm(GROUPS, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    width = 64
    for block, length in enumerate((6, 12, 24, 16)):
        if block:
            layers += [
                nn.GroupNorm(GROUPS, width),
                nn.ReLU(),
                nn.Conv2d(width, width // 2, 1, bias=False),
                nn.AvgPool2d(2),
            ]
            width //= 2
        layers += [Dense(width + 32 * layer) for layer in range(length)]
        width += 32 * length
    layers += [nn.GroupNorm(GROUPS, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _square(features: int, channels: int, least: int, kind: str) -> tuple[int, int]:
    side = math.isqrt(features // channels)
    if channels * side * side != features or side < least:
        raise SettingsError(
            f"objective.scorer.kind: {kind} needs square images of {channels} channels (objective.scorer.channels) and "
            f"at least {least}x{least} pixels, channel after channel, but the data set has {features} features"
        )
    return side, side


class FlatNetwork:
    """A network as a function of one flat vector.

    Parameters
    ----------
    network
        Only its parameters' shapes matter, not their values; it must have no buffers and draw no random numbers.
    dtype
        Type of the vector.
    device
        Where it is computed.

    Attributes
    ----------
    device
        As given.
    dimension
        Length d of the vector.
    head
        How many of its last numbers belong to the last layer.
    """

    def __init__(self, network: nn.Module, dtype: DTypeLike, device: torch.device = CPU) -> None:
        self.device = device
        self._network = network
        self._dtype = np.dtype(dtype)
        self._shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.dimension = sum(self._sizes)
        last = next(reversed(self._shapes)).rpartition(".")[0]
        self.head = sum(
            math.prod(shape) for name, shape in self._shapes.items() if name.rpartition(".")[0] == last
        )

    def initial(self, seed: int) -> Vector:
        """Draw each layer uniformly from +-1/sqrt(inputs of a unit), as torch does; shape (d,).

        Layers that normalise begin with factors 1 and offsets 0, and draw nothing. The numbers come from the project's
        own generator: they do not depend on torch's version, and a float32 model is the rounded float64 model.
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
        outputs: torch.Tensor = torch.func.functional_call(self._network, parameters, (features,))
        return outputs

    def tensor(self, w: Vector) -> torch.Tensor:
        """Return a model as a tensor of its own, on the device."""
        # A copy: models may be read-only views of received bytes, which torch does not accept.
        return torch.from_numpy(np.array(w, self._dtype)).to(self.device)

    def chunks(self, features: Matrix) -> Iterator[torch.Tensor]:
        """Go through features, dense or sparse, of shape (n, m), in pieces of at most ``CHUNK`` rows on the device."""
        for start in range(0, features.shape[0], CHUNK):
            yield torch.from_numpy(dense(features[start : start + CHUNK])).to(self.device)


def dense(features: Matrix) -> Matrix:
    """Return features as an array that torch takes, shape (n, m)."""
    result: Matrix = features.toarray() if sp.issparse(features) else np.ascontiguousarray(features)
    return result


class NetworkScorer:
    """A network with one output for each sample. One thread at a time may use it, as for a network objective.

    Parameters
    ----------
    network
        Maps (n, features) to (n, 1).
    """

    def __init__(self, network: FlatNetwork) -> None:
        self._network = network
        self.dimension, self.head = network.dimension, network.head

    def initial(self, seed: int) -> Vector:
        """Return random weights; see :meth:`FlatNetwork.initial`."""
        return self._network.initial(seed)

    def scores(self, w: Vector, features: Matrix) -> Vector:
        """Return the outputs, shape (n,), for features of shape (n, m)."""
        flat = self._network.tensor(w)
        with torch.no_grad():
            pieces = [self._network.outputs(flat, chunk)[:, 0] for chunk in self._network.chunks(features)]
        return torch.cat(pieces).numpy(force=True) if pieces else np.empty(0, w.dtype)

    def differentiated(self, w: Vector, features: Matrix) -> tuple[Vector, PullBack]:
        """Return the outputs, and back-propagation of slopes in them.

        More samples than one chunk go through the network twice, so that the memory for activations stays bounded.
        """
        flat = self._network.tensor(w).requires_grad_()
        if features.shape[0] <= CHUNK:
            outputs = self._network.outputs(flat, next(self._network.chunks(features)))[:, 0]

            def at_once(slopes: Vector) -> Vector:
                wanted = torch.from_numpy(slopes).to(self._network.device)
                gradient: Vector = torch.autograd.grad(outputs, flat, wanted)[0].numpy(force=True)
                return gradient

            return outputs.numpy(force=True), at_once

        def by_chunks(slopes: Vector) -> Vector:
            wanted = torch.split(torch.from_numpy(slopes).to(self._network.device), CHUNK)
            total = torch.zeros_like(flat)
            for chunk, piece in zip(self._network.chunks(features), wanted, strict=True):
                total += torch.autograd.grad(self._network.outputs(flat, chunk)[:, 0], flat, piece)[0]
            gradient: Vector = total.numpy(force=True)
            return gradient

        return self.scores(w, features), by_chunks


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
    device
        Where it is computed.

    Raises
    ------
    SettingsError
        The data are not for classification.
    DataError
        A label is not a class.
    """

    def __init__(
        self,
        network: nn.Module,
        shard: Shard,
        *,
        kind: str,
        l2: float,
        dtype: DTypeLike = np.float32,
        device: torch.device = CPU,
    ) -> None:
        self._network = FlatNetwork(network, dtype, device)
        super().__init__(dimension=self._network.dimension, samples=shard.samples, dtype=dtype)
        self.l2 = l2
        self._kind = kind
        self._features, self._targets = self._prepare(shard)

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        return features, class_indices(shard.labels, shard.classes, self._kind)

    @property
    def head(self) -> int:
        """How many of the last parameters belong to the last layer."""
        return self._network.head

    def initial(self, seed: int) -> Vector:
        """Return random parameters, shape (d,); see :meth:`FlatNetwork.initial`."""
        return self._network.initial(seed)

    def _chunks(
        self, features: Matrix, targets: Targets, rows: Indices, size: int = CHUNK
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        device = self._network.device
        for start in range(0, rows.size, size):
            chosen = rows[start : start + size]
            yield (
                torch.from_numpy(dense(features[chosen])).to(device),
                torch.from_numpy(targets[chosen]).to(device),
            )

    def loss(self, w: Vector) -> float:
        """Return the mean loss of the samples at ``w``, shape (d,); DataError if there are none."""
        self.require(self.samples)
        return self.evaluate(w).loss

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, shape (d,); DataError if there are none."""
        self.require(rows.size)
        total, flat = 0.0, self._network.tensor(w)
        with torch.no_grad():
            for features, targets in self._chunks(self._features, self._targets, rows):
                outputs = self._network.outputs(flat, features)
                total += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
        return total / rows.size

    @property
    def least_loss(self) -> float:
        """No cross-entropy is below 0."""
        return 0.0

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2``."""
        return 0.5 * self.l2 * float(w @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`."""
        self.require(rows.size)
        flat = self._network.tensor(w).requires_grad_()
        total = torch.zeros_like(flat)
        for features, targets in self._chunks(self._features, self._targets, rows):
            loss = nn.functional.cross_entropy(
                self._network.outputs(flat, features), targets, reduction="sum"
            )
            total += torch.autograd.grad(loss / rows.size, flat)[0]
        result: Vector = total.numpy(force=True)
        if self.l2:
            result += self.l2 * w
        return result

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the gradient with every sample's part clipped, shape (d,); see :meth:`Objective.clipped_gradient`."""
        self.require(rows.size)
        flat = self._network.tensor(w)
        total = torch.zeros_like(flat)
        of_each = torch.func.vmap(torch.func.grad(self._sample_loss), in_dims=(None, 0, 0))
        size = max(1, min(CHUNK, GRADIENTS // self.dimension))
        for features, targets in self._chunks(self._features, self._targets, rows, size):
            gradients = of_each(flat, features, targets)
            norms = torch.linalg.vector_norm(gradients, dim=1)
            # One that is not finite counts as zero: the bound holds whatever the model is.
            gradients[~torch.isfinite(norms)] = 0
            norms[~torch.isfinite(norms)] = 0
            # A gradient of 0 has the factor 1: infinity is cut off.
            total += torch.clamp(bound / norms, max=1.0) @ gradients
        result: Vector = (total / rows.size).numpy(force=True)
        if self.l2:
            result += self.l2 * w
        return result

    def _sample_loss(self, flat: torch.Tensor, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        outputs = self._network.outputs(flat, features.unsqueeze(0))
        return nn.functional.cross_entropy(outputs, target.unsqueeze(0))

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return how well ``w`` does on ``shard``, or on the objective's own samples."""
        features, targets = (self._features, self._targets) if shard is None else self._prepare(shard)
        flat = self._network.tensor(w)
        loss_sum, correct = 0.0, 0
        with torch.no_grad():
            for chunk, wanted in self._chunks(features, targets, np.arange(targets.size)):
                outputs = self._network.outputs(flat, chunk)
                losses = nn.functional.cross_entropy(outputs, wanted, reduction="none")
                loss_sum += float(losses.sum(dtype=torch.float64))
                correct += int((outputs.argmax(dim=1) == wanted).sum())
        return Metrics(loss_sum=loss_sum, correct=correct, samples=targets.size)
