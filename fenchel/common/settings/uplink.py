"""What becomes of vectors on their way: sparsified, clipped, with noise, in fewer bits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from fenchel.common.settings.section import Section


class UplinkSparsifier(Section):
    """Which coordinates a client sends (docs/specifications/fedpdm.md, sections 2.4 and 2.5)."""

    support: Literal["top-k", "random", "shared-random", "public-top-k"] = Field(
        description="top-k: the largest entries, which the server thereby learns; random: coordinates that each client "
        "draws for itself; shared-random: the same random coordinates for all clients of a round, whose indices need "
        "not be sent; public-top-k: four fifths are the largest of the model that everybody was sent, the rest is "
        "shared and random"
    )
    keep: float = Field(gt=0, le=1, description="share of the coordinates that are sent (alpha_U)")
    fill: Literal["zero", "hold"] | None = Field(
        None,
        description="coordinates of the new model that nobody sent: zero, or as they were; null: zero for top-k and "
        "hold for the others",
    )

    @property
    def holds(self) -> bool:
        """Whether coordinates that nobody sent stay as they were."""
        return self.support != "top-k" if self.fill is None else self.fill == "hold"

    @property
    def is_shared(self) -> bool:
        """Whether the server knows the coordinates before anything arrives."""
        return self.support in ("shared-random", "public-top-k")


class Uplink(Section):
    """What happens to the vectors that clients send, in this order: sparsify, clip, noise, dtype."""

    sparsify: UplinkSparsifier | None = Field(None, description="send some coordinates only; null: all of them")
    clip: PositiveFloat | None = Field(
        None,
        description="largest norm of what is sent, as a difference from the model that the round began with; longer "
        "ones are shortened",
    )
    noise: PositiveFloat | None = Field(
        None,
        description="standard deviation of Gaussian noise on every value that is sent, for experiments: it comes with "
        "no claim of privacy, for which there is differential_privacy",
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="floating-point type on the wire; null: that of the model"
    )

    @property
    def is_plain(self) -> bool:
        """Whether vectors are sent as they are."""
        return self.sparsify is None and self.clip is None and self.noise is None and self.dtype is None


class DownlinkSparsifier(Section):
    """Which coordinates of the model the server keeps and sends.

    Source: docs/specifications/fedpdm.md, section 2.4, step 8.
    """

    support: Literal["top-k", "shared-random"] = Field(
        "top-k", description="the largest entries, or random ones, whose indices need not be sent"
    )
    keep: float = Field(gt=0, le=1, description="share of the coordinates that are kept (alpha_D); others are zero")


class Downlink(Section):
    """What happens to the model before it is sent to the clients; the server goes on with what was sent."""

    sparsify: DownlinkSparsifier | None = Field(
        None, description="keep some coordinates of the model only; null: all of them"
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="floating-point type on the wire; null: that of the model"
    )

    @property
    def is_plain(self) -> bool:
        """Whether the model is sent as it is."""
        return self.sparsify is None and self.dtype is None
