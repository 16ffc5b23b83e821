"""Export of trained models, with the preparation of their samples, to PyTorch modules and ONNX graphs."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from fenchel.common.arrays import Vector
from fenchel.common.data.scaling import Columns, Step
from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.objectives.binary import BinaryObjective, LinearScorer
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.networks.flat import FlatNetwork
from fenchel.common.objectives.networks.module import ModuleObjective
from fenchel.common.objectives.networks.objective import NetworkObjective
from fenchel.common.objectives.networks.scorer import NetworkScorer
from fenchel.common.objectives.objective import Objective


class ScaledColumns(nn.Module):
    """Layer that computes ``(x - shift) / spread`` for each column."""

    shift: torch.Tensor
    spread: torch.Tensor

    def __init__(self, step: Columns) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(step.shift))
        self.register_buffer("spread", torch.tensor(step.spread))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return scaled samples, shape (n, m)."""
        return (samples - self.shift) / self.spread


class UnitNorms(nn.Module):
    """Layer that divides each row, except rows of zeros, by its Euclidean norm."""

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return scaled rows, shape (n, m)."""
        norms = torch.linalg.vector_norm(samples, dim=1, keepdim=True)
        return samples / torch.where(norms == 0, 1.0, norms)


class Appended(nn.Module):
    """Layer that appends a constant feature."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return samples with the constant feature, shape (n, m + 1)."""
        return nn.functional.pad(samples, (0, 1), value=self.value)


def torch_module(objective: Objective, w: Vector, steps: Sequence[Step], bias: float | None) -> nn.Module:
    """Return a module that maps stored samples, shape (n, m), to scores, shape (n,) or (n, outputs).

    Parameters
    ----------
    w
        Model, shape (d,).
    steps
        Fitted steps of the preparation, in order.
    bias
        Value of the constant feature; ``None`` for none.

    Raises
    ------
    SettingsError
        If the objective is a user's own and has no module.
    """
    dtype = torch.from_numpy(np.empty(0, objective.dtype)).dtype
    layers: list[nn.Module] = [ScaledColumns(step) if isinstance(step, Columns) else UnitNorms() for step in steps]
    layers += [] if bias is None else [Appended(bias)]
    return nn.Sequential(*layers, *_model(objective, w)).to(dtype).eval()


def _model(objective: Objective, w: Vector) -> list[nn.Module]:
    """Return the layers that follow the preparation."""
    if isinstance(objective, ModuleObjective):
        return objective.layers_of(w)
    if isinstance(objective, NetworkObjective):
        return [_materialised(objective.network, w)]
    if isinstance(objective, BinaryObjective) and isinstance(objective.scorer, NetworkScorer):
        return [_materialised(objective.scorer.network, w), nn.Flatten(0)]
    if isinstance(objective, LinearObjective):
        outputs = objective.outputs
    elif isinstance(objective, BinaryObjective) and isinstance(objective.scorer, LinearScorer):
        outputs = 1
    else:
        raise SettingsError(
            f"{type(objective).__qualname__} is an objective of your own without a known module; use a "
            "fenchel.TorchObjective"
        )
    linear = nn.Linear(w.size // outputs, outputs, bias=False)
    linear.weight = nn.Parameter(torch.tensor(w.reshape(outputs, -1)))
    return [linear, *([nn.Flatten(0)] if outputs == 1 else [])]


def _materialised(network: FlatNetwork, w: Vector) -> nn.Module:
    """Return a copy of the network's module on the CPU, with the weights of a model, shape (d,)."""
    module = copy.deepcopy(network.module).to_empty(device="cpu")
    start = 0
    for parameter in module.parameters():
        size = math.prod(parameter.shape)
        parameter.data = torch.tensor(w[start : start + size]).view(parameter.shape)
        start += size
    return module


def onnx_model(module: nn.Module, features: int) -> Any:
    """Return a module as an ``onnx.ModelProto`` with the input ``samples`` and the output ``scores``.

    Parameters
    ----------
    features
        Number of features of a sample.

    Raises
    ------
    MissingDependencyError
        If the library for the export is not installed.
    """
    try:
        import onnxscript  # noqa: F401 - torch's own error does not name the package to install
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "the export to ONNX needs a library that is not installed; install it with pip install 'fenchel[onnx]'"
        ) from None
    dtype = next(iter(module.parameters())).dtype
    with _quiet():
        program = torch.onnx.export(
            module,
            (torch.zeros((2, features), dtype=dtype),),
            input_names=["samples"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about libraries that the export does not need."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
