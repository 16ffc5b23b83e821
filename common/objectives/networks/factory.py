"""From settings to networks. Whoever has no torch fails here: this module is imported when a network is wanted."""

from __future__ import annotations

import torch
from numpy.typing import DTypeLike
from torch import nn

from fenchel.common.data.shard import Shard
from fenchel.common.objectives.losses import require_classes
from fenchel.common.objectives.networks.architectures import cnn, densenet121, mlp, resnet20
from fenchel.common.objectives.networks.device import DeviceName, find_device
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


def build_network(settings: MlpSettings | CnnSettings, shard: Shard) -> NetworkObjective:
    """Return the network that the settings describe, on the data of one shard.

    Sets torch to one thread and to deterministic algorithms, for the whole process.
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
    return NetworkObjective(network, shard, kind=settings.kind, l2=settings.l2, dtype=settings.dtype, device=device)


def build_scorer(
    settings: MlpScorer | CnnScorer | ResNetScorer | DenseNetScorer,
    features: int,
    dtype: DTypeLike,
    device: DeviceName = "cpu",
) -> NetworkScorer:
    """Return the network with one output that the settings describe.

    Sets torch to one thread and to deterministic algorithms, for the whole process.
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
            return resnet20(features)
        case DenseNetScorer():
            return densenet121(features)
