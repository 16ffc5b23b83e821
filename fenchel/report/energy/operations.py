"""Multiply-accumulate operations of a model, by its layers."""

from __future__ import annotations

import math

from fenchel.common.errors import SettingsError
from fenchel.common.settings.objective import (
    BinarySettings,
    CnnScorer,
    CnnSettings,
    LinearScorerSettings,
    MlpScorer,
    MlpSettings,
    ObjectiveSettings,
    OwnSettings,
)

BACKWARD = 3
"""Approximate cost of a forward and a backward pass together, in forward passes."""


def forward_macs(objective: ObjectiveSettings, features: int, classes: int) -> int:
    """Return the number of multiply-accumulate operations of one sample's forward pass.

    Biases, ReLU and pooling are not counted.

    Parameters
    ----------
    features, classes
        Numbers of features, including a bias feature, and of classes of the whole problem.

    Raises
    ------
    SettingsError
        If the operations of the model are unknown.
    """
    if isinstance(objective, OwnSettings):
        raise SettingsError(
            f"{objective.name}: the number of operations of this model is unknown; give the multiply-accumulate "
            "operations of the forward pass of one sample with --macs",
            key="objective.name",
        )
    if isinstance(objective, BinarySettings):
        return _scorer_macs(objective, features)
    if isinstance(objective, MlpSettings):
        return (features + classes) * objective.hidden
    if isinstance(objective, CnnSettings):
        return _cnn(features, classes)
    return features * (classes if objective.kind in ("softmax", "one-sided-logistic") else 1)


def _scorer_macs(objective: BinarySettings, features: int) -> int:
    match objective.scorer:
        case LinearScorerSettings():
            return features
        case MlpScorer(hidden=hidden):
            return (features + 1) * hidden
        case CnnScorer():
            return _cnn(features, 1)
    raise SettingsError(
        f"{objective.scorer.kind}: the number of operations of this network is unknown; give the "
        "multiply-accumulate operations of the forward pass of one sample with --macs",
        key="objective.scorer.kind",
    )


def _cnn(features: int, outputs: int) -> int:
    """Return the operations of two 3x3 convolutions (16 and 32 channels) with 2x2 pooling, and a layer of 500 units."""
    side = math.isqrt(features)
    first = side**2 * 16 * 9
    second = (side // 2) ** 2 * 32 * 16 * 9
    return first + second + (side // 4) ** 2 * 32 * 500 + 500 * outputs
