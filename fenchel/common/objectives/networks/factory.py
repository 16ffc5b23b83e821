"""Construction of networks from settings. This module requires torch and is imported only for networks."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import torch
from numpy.typing import DTypeLike
from torch import nn

from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.losses import require_classes
from fenchel.common.objectives.networks.architectures import cnn, densenet121, mlp, resnet20
from fenchel.common.objectives.networks.flat import FlatNetwork
from fenchel.common.objectives.networks.objective import NetworkObjective
from fenchel.common.objectives.networks.scorer import NetworkScorer
from fenchel.common.settings.objective import (
    CnnScorer,
    CnnSettings,
    DenseNetScorer,
    MlpScorer,
    MlpSettings,
    ResNetScorer,
)

DeviceName: TypeAlias = Literal["cpu", "cuda", "auto"]
NetworkScorers: TypeAlias = MlpScorer | CnnScorer | ResNetScorer | DenseNetScorer


def build_network(settings: MlpSettings | CnnSettings, shard: Shard) -> NetworkObjective:
    """Return the objective of the network that the settings describe, on one shard.

    Set torch to one thread and to deterministic algorithms, for the whole process. Raise a ``SettingsError`` if the
    settings do not fit the data, or if the device is missing.
    """
    require_classes(shard.classes, settings.kind)
    device = find_device(settings.device)
    network = _network(settings, shard.features.shape[1], shard.classes)
    return NetworkObjective(network, shard, kind=settings.kind, l2=settings.l2, dtype=settings.dtype, device=device)


def build_scorer(settings: NetworkScorers, features: int, dtype: DTypeLike, device: DeviceName) -> NetworkScorer:
    """Return the network with one output that the settings describe.

    Set torch to one thread and to deterministic algorithms, for the whole process. Raise a ``SettingsError`` if the
    settings do not fit the number of features, or if the device is missing.
    """
    found = find_device(device)
    return NetworkScorer(FlatNetwork(_network(settings, features, 1), dtype, found))


def _network(settings: MlpSettings | CnnSettings | NetworkScorers, features: int, outputs: int) -> nn.Sequential:
    # On the device "meta", parameters have shapes but no values, so torch draws no random numbers.
    with torch.device("meta"):
        match settings:
            case MlpSettings():
                return mlp(features, settings.hidden, outputs)
            case MlpScorer():
                return mlp(features, settings.hidden, outputs, biases=settings.biases)
            case CnnSettings() | CnnScorer():
                return cnn(features, outputs)
            case ResNetScorer():
                return resnet20(features)
            case DenseNetScorer():
                return densenet121(features)


def find_device(name: DeviceName) -> torch.device:
    """Return the device that the settings name, and make torch's results on it reproducible bit for bit.

    Raise a ``SettingsError`` for ``cuda`` without a usable GPU.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no GPU with a driver"
        raise SettingsError(
            f"cuda given, but torch {torch.__version__} on this machine {built}; use cpu, or auto, which uses a "
            "GPU if there is one",
            key="objective.device",
        )
    # CUDA reads this variable at start-up. Without the variable, matrix products are not deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False  # TF32 would round the operands of convolutions to 11 significant bits
    return torch.device("cuda")


def gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that torch sees."""
    return tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
