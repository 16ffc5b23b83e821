"""Settings of the HyFEM-like algorithm (HyFDCA specification, sections 2.7 and 4.3)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat

from common.algorithms.hybrid_fedavg import LocalDescentSettings


class HyFEMLikeSettings(LocalDescentSettings):
    """A stand-in for HyFEM (Zhang et al. 2020) with linear models: local models, tied to the global one."""

    name: Literal["hyfem-like"] = "hyfem-like"
    matching: NonNegativeFloat = Field(
        1.0, description="weight mu of (mu/2) ||v_k - w||^2, which pulls local models towards the global one"
    )
