"""Where torch computes."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import torch

from fenchel.common.errors import SettingsError

DeviceName: TypeAlias = Literal["cpu", "cuda", "auto"]


def find_device(name: DeviceName) -> torch.device:
    """Return the device that the settings name, and set torch up so that equal input gives equal bits on it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no GPU with a driver"
        raise SettingsError(
            f"cuda given, but torch {torch.__version__} on this machine {built}; use cpu, or auto, "
            "which takes a GPU where there is one",
            key="objective.device",
        )
    # Read when CUDA starts: without it the products of matrices may differ from call to call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False  # which would round the factors of convolutions to 11 bits
    return torch.device("cuda")
