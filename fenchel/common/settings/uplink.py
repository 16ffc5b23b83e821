"""Settings of update compression: sparsification, clipping, noise, dtype."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from fenchel.common.settings.section import Section


class UplinkSparsifier(Section):
    """Coordinates that a client sends (docs/specifications/fedpdm.md, sections 2.4 and 2.5)."""

    support: Literal["top-k", "random", "shared-random", "public-top-k"] = Field(
        description="choice of coordinates. top-k: the largest entries, which are thereby revealed to the server; "
        "random: coordinates that each client draws for itself; shared-random: the same random coordinates for all "
        "clients of a round, whose indices are not sent; public-top-k: four fifths are the largest of the model sent "
        "to all clients, the rest are shared and random"
    )
    keep: float = Field(gt=0, le=1, description="share of the coordinates that are sent (alpha_U)")
    fill: Literal["zero", "hold"] | None = Field(
        None,
        description="new values of coordinates that no client sent. zero: 0; hold: unchanged; null: zero for top-k, "
        "and hold for the others",
    )

    @property
    def holds(self) -> bool:
        """True if coordinates that no client sent keep their value."""
        return self.support != "top-k" if self.fill is None else self.fill == "hold"

    @property
    def is_shared(self) -> bool:
        """True if the server knows the coordinates in advance."""
        return self.support in ("shared-random", "public-top-k")


class Uplink(Section):
    """Operations on the vectors that clients send, in this order: sparsify, clip, noise, dtype."""

    sparsify: UplinkSparsifier | None = Field(None, description="send some coordinates only; null: all of them")
    clip: PositiveFloat | None = Field(
        None, description="clipping norm of the upload, as a difference from the model at the start of the round"
    )
    noise: PositiveFloat | None = Field(
        None,
        description="standard deviation of Gaussian noise on every value that is sent, for experiments; without "
        "privacy guarantees, for which differential_privacy exists",
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="floating-point type on the wire; null: that of the model"
    )

    @property
    def is_plain(self) -> bool:
        """True if vectors are sent unchanged."""
        return self.sparsify is None and self.clip is None and self.noise is None and self.dtype is None


class DownlinkSparsifier(Section):
    """Coordinates of the model that the server keeps and sends.

    Source: docs/specifications/fedpdm.md, section 2.4, step 8.
    """

    support: Literal["top-k", "shared-random"] = Field(
        "top-k", description="the largest entries, or random ones, whose indices need not be sent"
    )
    keep: float = Field(gt=0, le=1, description="share of the coordinates that are kept (alpha_D); others are zero")


class Downlink(Section):
    """Operations on the model before it is sent to clients. The server continues with the model as sent."""

    sparsify: DownlinkSparsifier | None = Field(
        None, description="keep some coordinates of the model only; null: all of them"
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="floating-point type on the wire; null: that of the model"
    )

    @property
    def is_plain(self) -> bool:
        """True if the model is sent unchanged."""
        return self.sparsify is None and self.dtype is None
