"""Architectures of the FedDCD and DRDM papers, and of deep networks for AUC maximisation.

The network of the FedDCD paper has one hidden layer and no biases. The network of the DRDM paper has two convolutions
(docs/specifications/drdm.md, section 5.1).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn

from fenchel.common.errors import SettingsError

GROUPS = 8
"""Number of groups of channels in group normalisation, which unlike batch normalisation keeps no statistics."""


def mlp(features: int, hidden: int, classes: int, *, biases: bool = False) -> nn.Sequential:
    """Return a network with one hidden layer of ``hidden`` units with ReLU activation."""
    return nn.Sequential(nn.Linear(features, hidden, bias=biases), nn.ReLU(), nn.Linear(hidden, classes, bias=biases))


def cnn(features: int, classes: int) -> nn.Sequential:
    """Return the network of the DRDM paper, which has 794,310 parameters for 784 features and 10 classes.

    Raise a ``SettingsError`` unless the features are the pixels of square grey images of at least 4x4 pixels.
    """
    side = math.isqrt(features)
    if side * side != features or side < 4:
        raise SettingsError(
            "cnn needs square grey images of at least 4x4 pixels (784 features for 28x28), but the data set has "
            f"{features} features; use mlp or softmax",
            key="objective.kind",
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


class Residual(nn.Module):
    """Residual block of two 3x3 convolutions.

    If the number of channels grows, the shortcut takes every second pixel and fills the new channels with zeros.
    """

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
        """Return ``relu(shortcut(x) + inner(x))``."""
        around = x[:, :, :: self.stride, :: self.stride]
        if self.more:
            around = nn.functional.pad(around, (0, 0, 0, 0, 0, self.more))
        return torch.relu(around + self.inner(x))


def resnet20(features: int) -> nn.Sequential:
    """Return ResNet-20 for small images (He et al. 2016, section 4.2), with one output and group normalisation."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    return nn.Sequential(
        nn.Unflatten(1, _image(features, 4, "resnet20")),
        nn.Conv2d(_channels(features), 16, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, 16),
        nn.ReLU(),
        *(Residual(inputs, outputs) for inputs, outputs in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 1),
    )


class Dense(nn.Module):
    """Layer of DenseNet, which appends 32 channels to its input."""

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
        """Return ``x`` with the channels of ``inner(x)`` appended."""
        return torch.cat([x, self.inner(x)], 1)


def densenet121(features: int) -> nn.Sequential:
    """Return DenseNet-121 (Huang et al. 2017, table 1), with one output and group normalisation."""
    layers: list[nn.Module] = [
        nn.Unflatten(1, _image(features, 32, "densenet121")),
        nn.Conv2d(_channels(features), 64, 7, 2, padding=3, bias=False),
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


def _channels(features: int) -> int:
    """Return the number of channels of square images: 1 for grey images, 3 for colour images."""
    # No number is both a square and three times a square, so the number of features determines the channels.
    return 1 if math.isqrt(features) ** 2 == features else 3


def _image(features: int, least: int, kind: str) -> tuple[int, int, int]:
    """Return the numbers of channels, rows and columns of square images, or raise a ``SettingsError``."""
    channels = _channels(features)
    side = math.isqrt(features // channels)
    if channels * side * side != features or side < least:
        raise SettingsError(
            f"{kind} needs square images, grey or in colour (one channel after the other), of at least "
            f"{least}x{least} pixels, but the data set has {features} features; use mlp or softmax",
            key="objective.scorer.kind",
        )
    return channels, side, side
