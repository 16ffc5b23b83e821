"""The job's vector as a model of torch, which is what APPFL's server holds."""

from __future__ import annotations

import torch

from benchmarks.peers.job import start


class Vector(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """One parameter, shape (floats,)."""

    def __init__(self, floats: int) -> None:
        super().__init__()
        self.vector = torch.nn.Parameter(torch.from_numpy(start(floats)), requires_grad=False)
