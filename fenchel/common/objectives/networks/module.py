"""Objectives of users' PyTorch modules and losses, with buffers, dropout, augmentation and optimisers."""

from __future__ import annotations

import copy
import inspect
import math
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import scipy
import torch
from numpy.typing import DTypeLike
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.losses import Targets
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.networks.factory import DeviceName, find_device
from fenchel.common.objectives.networks.flat import CHUNK, dense
from fenchel.common.objectives.objective import LocalStep, Objective, ObjectiveFactory
from fenchel.common.randomness import public_seed

_USUAL_MOMENTUM = 0.1
"""Momentum of running statistics for layers whose own momentum is ``None``."""
_SAMPLED = 1 << 12
"""Number of entries of a model, up to a factor of 2, from which the seed of a batch is computed."""

Tensors = Mapping[str, torch.Tensor]


class TorchObjective(ObjectiveFactory):
    """Objective of a PyTorch module and a loss, named by the settings (``objective.kind: own``).

    A model is one flat vector: the trained parameters in the order of the module, then its floating-point buffers, such
    as running statistics. Frozen parameters and other buffers keep the values that the module gives them.

    Buffers are sent and averaged like parameters, but are not penalised. If a forward pass changes a buffer from b to
    b', the buffer's part of the gradient is b - b'. Batch normalisation has momentum 1 in this pass, so a step of size
    s is a moving average with momentum s. A batch with one value per channel is normalised by the running statistics.

    Random numbers of dropout and ``transform`` depend only on the model and the positions of the batch's samples, so
    gradients are reproducible. Losses are evaluated without dropout and ``transform``.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A module, whose layers are reset with the run's seed, or a function that returns a module. The function is
        called with torch seeded by the run, and with the numbers ``features`` and ``classes`` if it has parameters of
        these names.
    loss : callable
        Mean loss of a batch, such as ``torch.nn.CrossEntropyLoss()``. It takes outputs, shape (n, outputs) or (n,), and
        targets, shape (n,): int64 classes, or floats for one output and in regression. The tensors of a loss that is a
        module, such as weights of classes, are copied to the device.
    shape : tuple of int, optional
        Shape of a sample, such as ``(1, 28, 28)``. By default a vector of all features.
    transform : callable, optional
        Augmentation, a function of a batch of training samples, shape ``(n, *shape)``, that returns the changed batch.
    device : {"cpu", "cuda", "auto"}, default "cpu"
        ``cuda`` is the first GPU. ``auto`` uses it if there is one.
    optimizer : callable, optional
        Class of ``torch.optim``, or a function of the parameters and ``lr`` that returns an optimiser. Each client
        begins every round with a new one. By default gradient descent.

    Raises
    ------
    TypeError
        If ``optimizer`` is not callable.

    Examples
    --------
    A linear classifier, in a module that the settings name::

        import fenchel
        from torch import nn

        def classifier(features, classes):
            return nn.Linear(features, classes)

        linear = fenchel.TorchObjective(classifier, nn.CrossEntropyLoss())
    """

    def __init__(
        self,
        module: nn.Module | Callable[..., nn.Module],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        shape: tuple[int, ...] | None = None,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        device: DeviceName = "cpu",
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    ) -> None:
        if optimizer is not None and not callable(optimizer):
            raise TypeError(
                "optimizer makes an optimiser anew in every round: give a class, such as torch.optim.AdamW, or "
                f"functools.partial(torch.optim.SGD, momentum=0.9), not a {type(optimizer).__name__}"
            )
        self.module, self.loss, self.shape, self.transform, self.device = module, loss, shape, transform, device
        self.optimizer = optimizer

    def __call__(self, shard: Shard, l2: float, dtype: DTypeLike) -> Objective:
        """Return the objective on one shard."""
        return ModuleObjective(self, shard, l2=l2, dtype=dtype)

    def made(self, features: int, classes: int, seed: int) -> nn.Module:
        """Return a new module with the initial values of a run.

        Parameters
        ----------
        features : int
            Number of features of a sample.
        classes : int
            Number of classes, 0 in regression.
        seed : int
            Seed of the run.

        Returns
        -------
        torch.nn.Module
            The module.

        Raises
        ------
        SettingsError
            If a layer of a given module cannot be reset.
        """
        with seeded(public_seed(seed, "initial module")):
            if isinstance(self.module, nn.Module):
                module = copy.deepcopy(self.module)
                _reset(module)
                return module
            wanted = inspect.signature(self.module).parameters
            known = {"features": features, "classes": classes}
            return self.module(**{name: value for name, value in known.items() if name in wanted})


class ModuleObjective(Objective):
    """Mean loss of a module's outputs plus ``(l2/2) ||w||^2`` of its parameters, on one shard.

    It must not be used by several threads at once.
    """

    def __init__(self, described: TorchObjective, shard: Shard, *, l2: float, dtype: DTypeLike) -> None:
        self._described, self.l2 = described, l2
        self._features_of_a_sample, self._classes = int(shard.features.shape[1]), shard.classes
        self.device = find_device(described.device)
        module = described.made(self._features_of_a_sample, shard.classes, 0)
        self._module = module.to(self.device)
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        buffers = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
        if not trained:
            raise SettingsError(
                "the module has no parameters to train; use a module with a parameter that requires gradients",
                key="objective.name",
            )
        self._trained = sum(value.numel() for value in trained.values())
        self._shapes = {name: tuple(value.shape) for name, value in (trained | buffers).items()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self._buffers = frozenset(buffers)
        super().__init__(dimension=sum(self._sizes), samples=shard.samples, dtype=dtype)
        self._float = torch.from_numpy(np.empty(0, self.dtype)).dtype
        self._module.to(self._float)
        loss = described.loss  # which may hold tensors, such as the weights of the classes
        self._loss_of = copy.deepcopy(loss).to(self.device, self._float) if isinstance(loss, nn.Module) else loss
        momenta = dict.fromkeys(buffers, 1.0)
        for name, each in self._module.named_modules():
            if isinstance(each, _NormBase):
                momentum = _USUAL_MOMENTUM if each.momentum is None else each.momentum
                momenta |= {f"{name}.{buffer}".lstrip("."): momentum for buffer, _ in each.named_buffers(recurse=False)}
                each.momentum = 1.0  # with momentum 1, the running statistics are those of the latest batch
        self._buffer_momenta = [momenta[name] for name in buffers], [value.numel() for value in buffers.values()]
        self._has_one_output = self._outputs_alone()
        self._features, self._targets = self._prepare(shard)

    def _outputs_alone(self) -> bool:
        """Return whether the module has one output per sample.

        Raises
        ------
        SettingsError
            If a layer cannot process the features, or the output has an unexpected shape.
        """
        try:
            with torch.no_grad(), seeded(0):
                self._module.eval()
                outputs = self._module(self._shaped(torch.zeros((2, self._features_of_a_sample), dtype=self._float)))
        except RuntimeError as error:
            if (layer := _refusing_layer(error)) is None:
                raise  # an error in the user's code
            form = "" if self._described.shape is None else f" in the shape {self._described.shape}"
            raise SettingsError(
                f"the layer {layer} cannot process samples of {self._features_of_a_sample} features{form}: {error}; "
                "change the layer, or give the shape of a sample to TorchObjective",
                key="objective.name",
            ) from None
        if outputs.shape[:1] != (2,) or outputs.ndim > 2:
            raise SettingsError(
                f"the module maps two samples to outputs of shape {tuple(outputs.shape)}; expected (2,) or (2, "
                "outputs)",
                key="objective.name",
            )
        count = 1 if outputs.ndim == 1 else outputs.shape[1]
        if count < self._classes and _needs_all_classes(self._described.loss):
            raise SettingsError(
                f"the module has {count} outputs for {self._classes} classes, but the loss needs an output for each "
                "class; change the last layer",
                key="objective.name",
            )
        return bool(count == 1)

    def _shaped(self, features: torch.Tensor) -> torch.Tensor:
        shape = self._described.shape
        return (features if shape is None else features.reshape(-1, *shape)).to(self.device)

    def _prepare(self, shard: Shard) -> tuple[Matrix, Targets]:
        features: Matrix = shard.features.astype(self.dtype, copy=False)
        are_floats = self._has_one_output or not self._classes
        return features, shard.labels.astype(self.dtype if are_floats else np.int64, copy=False)

    @property
    def trained(self) -> slice:
        """Slice of the parameters, which precede the buffers."""
        return slice(self._trained)

    def initial(self, seed: int) -> Vector:
        """Return the initial values of a new module, shape (d,), which also depend on the version of torch."""
        module = self._described.made(self._features_of_a_sample, self._classes, seed)
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        flat = [values[name].detach().cpu().numpy().ravel() for name in self._shapes]
        return np.concatenate(flat).astype(self.dtype)

    # Forward pass

    def _tensors(self, w: Vector) -> dict[str, torch.Tensor]:
        """Return a copy of a model as tensors by name, with ``requires_grad`` set for parameters."""
        flat = torch.from_numpy(np.array(w, self.dtype)).to(self.device)
        pieces = zip(self._shapes.items(), torch.split(flat, self._sizes), strict=True)
        found = {}
        for (name, shape), piece in pieces:
            if name not in self._buffers:
                found[name] = piece.view(shape).requires_grad_()
                continue
            found[name] = piece.view(shape).clone()  # a copy, because a forward pass overwrites buffers in place
            if name.endswith("running_var"):
                found[name].clamp_(min=0)  # steps with momentum can make a running variance negative
        return found

    def _outputs(self, tensors: Tensors, features: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = torch.func.functional_call(self._module, dict(tensors), (features,))
        return outputs.reshape(-1) if self._has_one_output else outputs

    def _chunks(
        self, features: Matrix, targets: Targets, rows: Indices, size: int = CHUNK
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(0, rows.size, size):
            chosen = rows[start : start + size]
            wanted = torch.from_numpy(targets[chosen]).to(self.device)
            yield self._shaped(torch.from_numpy(dense(features[chosen]))), wanted

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = self._loss_of(outputs, targets)
        if loss.ndim:
            raise SettingsError(
                f"the loss of a batch has shape {tuple(loss.shape)}; expected one number, the mean over samples "
                "(reduction='mean')",
                key="objective.name",
            )
        return loss

    # The objective

    def loss(self, w: Vector) -> float:
        """Return the mean loss of all samples at ``w``, shape (d,), or raise a DataError without samples."""
        return self.batch_loss(w, self.all_rows)

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, without dropout, or raise a DataError without samples."""
        self.require(rows.size)
        total, tensors = 0.0, self._tensors(w)
        self._module.eval()
        with torch.no_grad():
            for features, targets in self._chunks(self._features, self._targets, rows):
                total += float(self._loss(self._outputs(tensors, features), targets)) * len(targets)
        return total / rows.size

    def penalty(self, w: Vector) -> float:
        """Return ``(l2/2) ||w||^2`` of the parameters, without buffers."""
        trained = w[: self._trained]
        return 0.5 * self.l2 * float(trained @ trained)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient on some samples, shape (d,); see :meth:`Objective.batch_gradient`.

        A batch of more than 1,024 samples is processed in pieces, and batch normalisation uses the statistics of each
        piece. The buffers' part of the gradient is the weighted mean over the pieces.
        """
        self.require(rows.size)
        result = np.zeros(self.dimension, self.dtype)
        self._module.train()
        with seeded(_seed_of(w, rows)):
            for features, targets in self._chunks(self._features, self._targets, rows):
                result += self._gradient(w, features, targets) * self.dtype.type(len(targets) / rows.size)
        if self.l2:
            result[: self._trained] += self.l2 * w[: self._trained]
        return result

    def _gradient(self, w: Vector, features: torch.Tensor, targets: torch.Tensor) -> Vector:
        """Return the gradient of the mean loss, with b - b' for a buffer that changes from b to b', shape (d,)."""
        if self._described.transform is not None:
            features = self._described.transform(features)
        tensors = self._tensors(w)
        before = {name: tensors[name].clone() for name in self._buffers}
        try:
            outputs = self._outputs(tensors, features)
        except ValueError:
            if len(targets) > 1:
                raise
            # Batch normalisation rejects one value per channel, and the last batch may have one sample.
            tensors = self._tensors(w)
            with self._fixed_statistics():
                outputs = self._outputs(tensors, features)
        loss = self._loss(outputs, targets)
        trained = [tensor for name, tensor in tensors.items() if name not in self._buffers]
        try:
            slopes = iter(torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True))
        except RuntimeError as error:
            operation, _, rest = str(error).partition(" does not have a deterministic implementation")
            if not rest:
                raise
            raise SettingsError(
                f"the module needs {operation}, whose results on a GPU differ slightly between calls, so the run could "
                "not be repeated; use other layers, or device='cpu'",
                key="objective.name",
            ) from None
        found = [before[name] - tensors[name] if name in self._buffers else next(slopes) for name in tensors]
        result: Vector = torch.cat([each.reshape(-1) for each in found]).numpy(force=True)
        return result

    @contextmanager
    def _fixed_statistics(self) -> Iterator[None]:
        """Make batch normalisation use its running statistics without updating them."""
        layers = [each for each in self._module.modules() if isinstance(each, _NormBase)]
        for layer in layers:
            layer.eval()
        try:
            yield
        finally:
            for layer in layers:
                layer.train()

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the gradient with clipped sample gradients, shape (d,); see :meth:`Objective.clipped_gradient`.

        Raises
        ------
        SettingsError
            If the module has floating-point buffers, such as running statistics, or if the objective has an optimiser,
            whose steps do not bound the effect of one sample on the model.
        """
        if self.has_optimizer:
            raise SettingsError(
                "differential privacy clips gradients of single samples for plain gradient steps, but the "
                "objective has an optimiser; leave the optimiser out",
                key="objective.name",
            )
        if self._buffers:
            raise SettingsError(
                f"the module keeps batch statistics ({min(self._buffers)}), so the gradients of single samples "
                "cannot be clipped; use layers that normalise each sample, such as GroupNorm",
                key="objective.name",
            )
        self.require(rows.size)
        total = np.zeros(self.dimension, np.float64)
        self._module.train()
        with seeded(_seed_of(w, rows)):
            for features, target in self._chunks(self._features, self._targets, rows, 1):
                gradient = self._gradient(w, features, target)
                norm = float(np.linalg.norm(gradient))
                # Non-finite gradients count as zero, so that the clipping bound holds for every model.
                total += gradient * min(1.0, bound / norm if norm else 1.0) if math.isfinite(norm) else 0
        result = (total / rows.size).astype(self.dtype)
        if self.l2:
            result += self.l2 * w
        return result

    @property
    def has_optimizer(self) -> bool:
        """True if the user gave an optimiser."""
        return self._described.optimizer is not None

    def local_step(self, start: Vector, step_size: float) -> LocalStep:
        """Return the step function of a new optimiser with this learning rate; see :meth:`Objective.local_step`.

        Raises
        ------
        SettingsError
            If the optimiser cannot be constructed, or needs several gradients per step.
        """
        if self._described.optimizer is None:
            return super().local_step(start, step_size)
        parameters = [tensor for name, tensor in self._tensors(start).items() if name not in self._buffers]
        try:
            optimizer = self._described.optimizer(parameters, lr=step_size)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"the optimiser cannot be made from parameters and lr ({error}); give a class of torch.optim, or a "
                "function of these two arguments",
                key="objective.name",
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
            raise SettingsError(
                f"{type(optimizer).__name__} needs more than one gradient a step, which local training does not "
                "compute; use another optimiser of torch",
                key="objective.name",
            )
        sizes, momenta = self._sizes[: len(parameters)], np.repeat(*self._buffer_momenta).astype(self.dtype)

        def step(w: Vector, g: Vector) -> Vector:
            values, slopes = (
                torch.split(torch.tensor(each[self.trained], device=self.device), sizes) for each in (w, g)
            )
            for parameter, value, slope in zip(parameters, values, slopes, strict=True):
                parameter.data.copy_(value.view_as(parameter))
                parameter.grad = slope.view_as(parameter)
            optimizer.step()
            moved = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy(force=True)
            return np.concatenate([moved, w[self._trained :] - momenta * g[self._trained :]])

        return step

    def decision_function(self, w: Vector, features: Matrix) -> Dense:
        """Return the module's outputs for prepared features, shape (n,) or (n, outputs)."""
        rows, targets = np.arange(features.shape[0]), np.zeros(features.shape[0])
        features = features.astype(self.dtype, copy=False)
        tensors = self._tensors(w)
        self._module.eval()
        with torch.no_grad():
            pieces = [self._outputs(tensors, each) for each, _ in self._chunks(features, targets, rows)]
        if not pieces:
            return np.empty(0 if self._has_one_output else (0, max(self._classes, 1)), self.dtype)
        return torch.cat(pieces).numpy(force=True)

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the probability of each class, shape (n, classes).

        Raises
        ------
        NotImplementedError
            If the loss is not one of torch's cross-entropies.
        """
        if not isinstance(self._described.loss, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss):
            raise NotImplementedError("the loss is none of torch's cross-entropies, so outputs are no probabilities")
        outputs = self.decision_function(w, features)
        if self._has_one_output:
            return np.stack([scipy.special.expit(-outputs), scipy.special.expit(outputs)], axis=1)
        return scipy.special.softmax(outputs, axis=1)

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return the metrics of ``w``, shape (d,), on ``shard`` or on the objective's own samples."""
        features, targets = (self._features, self._targets) if shard is None else self._prepare(shard)
        loss_sum, correct, tensors = 0.0, 0, self._tensors(w)
        self._module.eval()
        with torch.no_grad():
            for chunk, wanted in self._chunks(features, targets, np.arange(len(targets))):
                outputs = self._outputs(tensors, chunk)
                loss_sum += float(self._loss(outputs, wanted)) * len(wanted)
                predicted = (outputs > 0) if self._has_one_output else outputs.argmax(dim=1)
                correct += int((predicted == wanted).sum())
        return Metrics(loss_sum=loss_sum, correct=correct if self._classes else None, samples=len(targets))

    def layers_of(self, w: Vector) -> list[nn.Module]:
        """Return the layers that map prepared features, shape (n, m), to outputs, shape (n,) or (n, outputs)."""
        shape = self._described.shape
        shaped = [] if shape is None else [nn.Unflatten(1, shape)]
        return [*shaped, self.module_of(w), *([nn.Flatten(0)] if self._has_one_output else [])]

    def module_of(self, w: Vector) -> nn.Module:
        """Return a copy of the module on the CPU, with the values of a model and in evaluation mode."""
        module = copy.deepcopy(self._module).cpu()
        values = {name: tensor.detach().cpu() for name, tensor in self._tensors(w).items()}
        module.load_state_dict({**module.state_dict(), **values})
        return module.eval()


def _refusing_layer(error: Exception) -> nn.Module | None:
    """Return the layer of torch whose code has raised an error; ``None`` if other code did."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = frames[-1].f_globals.get("__name__", "").startswith("torch.") if frames else False
    layer = frames[-1].f_locals.get("self") if inside else None
    return layer if isinstance(layer, nn.Module) else None


def _needs_all_classes(loss: Callable[..., torch.Tensor]) -> bool:
    """Return whether a loss of torch takes one output for each class."""
    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return classes or loss in (nn.functional.cross_entropy, nn.functional.nll_loss)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random generators inside the context, and restore their states afterwards."""
    seed &= (1 << 63) - 1
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=gpus):
        # torch.manual_seed would also record a stack trace for each other device.
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        yield


def _seed_of(w: Vector, rows: Indices) -> int:
    """Return a seed computed from the positions of a batch and some entries of the model."""
    some = np.ascontiguousarray(w[:: max(1, w.size // _SAMPLED)])
    return zlib.crc32(some.data, zlib.crc32(np.ascontiguousarray(rows).data)) << 20 | rows.size


def _reset(module: nn.Module) -> None:
    """Reset the parameters of all layers, or raise a ``SettingsError`` if some belong to no resettable layer."""
    covered: set[int] = set()
    for each in module.modules():
        if callable(reset := getattr(each, "reset_parameters", None)):
            reset()
            covered |= {id(value) for value in (*each.parameters(recurse=False), *each.buffers(recurse=False))}
    for name, value in module.named_parameters():
        if id(value) not in covered:
            raise SettingsError(
                f"the initial values of {name} are random and unknown, so that each process would draw others; "
                "give a function that makes the module in place of the module",
                key="objective.name",
            )
