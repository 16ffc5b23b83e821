"""Features of a frozen ResNet-18, with weights from a file of the user.

The architecture is that of He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, table 1. The
network is a function of weights and images, and cannot be trained. Batch normalisation uses the running means and
variances that are stored with the weights.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fenchel.common.errors import DataError

if TYPE_CHECKING:
    import torch

Weights: TypeAlias = "Mapping[str, torch.Tensor]"
"""Tensors by their names in torchvision's ``resnet18``."""

FEATURES = 512
"""Number of features of an image."""

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Means and standard deviations of red, green and blue in ImageNet, by which published weights expect scaled input."""

_CHANNELS = (64, 128, 256, 512)


def read_weights(path: Path) -> Weights:
    """Read the weights of a ResNet-18.

    Parameters
    ----------
    path
        File with a state dict, written by ``torch.save``. No code in the file is run.

    Returns
    -------
    Weights
        All weights but those of the last layer, in float32.

    Raises
    ------
    DataError
        If the file cannot be read, or a weight is missing or has another shape than in torchvision's ``resnet18``.
    """
    import torch

    try:
        content = io.BytesIO(path.read_bytes())  # memory for the content, not for the size claimed by the file
        found = torch.load(content, map_location="cpu", weights_only=True)
    except (  # errors of torch's unpickler for damaged files
        *(OSError, RuntimeError, ValueError, EOFError, LookupError, AttributeError, TypeError, AssertionError),
        *(pickle.UnpicklingError, struct.error),
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the file cannot be read as a state dict of tensors ({reason}); write it with "
            "torch.save(model.state_dict(), FILE)",
            source=path,
        ) from None
    for name, shape in _shapes().items():
        tensor = found.get(name) if isinstance(found, dict) else None
        if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != shape:
            given = f"of shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else "missing"
            raise DataError(f"{given}; expected shape {shape}, as in torchvision's resnet18", source=path, array=name)
    return {name: found[name].to(torch.float32) for name in _shapes()}


def features(weights: Weights, images: torch.Tensor, size: int) -> torch.Tensor:
    """Return the outputs of the last layer but one as features of images.

    Parameters
    ----------
    weights
        Weights of the network.
    images
        Images, shape (n, channels, rows, columns), float32, from 0 to 1, with one channel (grey) or three.
    size
        Number of rows and of columns to which images are resized by bilinear interpolation.

    Returns
    -------
    torch.Tensor
        Features, shape (n, 512).
    """
    import torch
    from torch.nn import functional

    def convolved(x: torch.Tensor, convolution: str, norm: str, stride: int) -> torch.Tensor:
        """Return the output of a convolution with padding, followed by batch normalisation."""
        kernel = weights[f"{convolution}.weight"]
        x = functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        mean, variance, scale, shift = (
            weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(x, mean, variance, scale, shift, training=False)

    with torch.inference_mode():
        x = functional.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)
        x = (x - torch.tensor(_MEAN).view(3, 1, 1)) / torch.tensor(_DEVIATION).view(3, 1, 1)
        x = functional.relu(convolved(x, "conv1", "bn1", 2))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(1, 5):
            for block in range(2):  # a residual block has two convolutions
                name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                inner = functional.relu(convolved(x, f"{name}.conv1", f"{name}.bn1", stride))
                inner = convolved(inner, f"{name}.conv2", f"{name}.bn2", 1)
                if stride > 1:
                    x = convolved(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
                x = functional.relu(inner + x)
        return x.mean(dim=(2, 3))


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights but the last layer's, by name."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, outputs: int, inputs: int, side: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, side, side)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = (outputs,)

    convolution("conv1", "bn1", 64, 3, 7)
    inputs = 64
    for stage, outputs in enumerate(_CHANNELS, 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            convolution(f"{name}.conv1", f"{name}.bn1", outputs, inputs, 3)
            convolution(f"{name}.conv2", f"{name}.bn2", outputs, outputs, 3)
            if inputs != outputs:
                convolution(f"{name}.downsample.0", f"{name}.downsample.1", outputs, inputs, 1)
            inputs = outputs
    return shapes
