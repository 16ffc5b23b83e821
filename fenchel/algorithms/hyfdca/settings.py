"""Settings of HyFDCA, and functions that its two halves must compute identically."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import BITS_OF_SECURITY, Backend, BackendChoice, Implementation, Security
from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.errors import PayloadError
from fenchel.common.objectives.losses import MarginLoss
from fenchel.common.randomness import generator
from fenchel.common.settings.algorithm import AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Sampler
from fenchel.common.settings.section import Section
from fenchel.common.version import SAME_VERSION

LINE_STEPS = 2.0 ** -np.arange(0.0, 31.0)
"""Step sizes that the line search compares if it has no closed form (logistic loss), shape (31,)."""

Preset: TypeAlias = Literal["auto", "linesearch", "safe", "exact", "paper", "theory"]


class Encryption(Section):
    """Encryption: key and precision of encrypted numbers."""

    security: Security = Field(
        128,
        description="security level of the Paillier key, as the length in bits of an equally strong symmetric key: 112 "
        "(a key of 2048 bits), 128 (3072) or 192 (7680)",
    )
    key_bits: PositiveInt | None = Field(
        None, description="length of the Paillier key; null: that of `security`. Less than 2048 in tests only"
    )
    implementation: Implementation = Field(
        "fenchel",
        description="implementation of Paillier. phe makes the key, encrypts, adds and decrypts with that library: the "
        "model is the same, and encryption takes about 20 times as long. phe is an extra (fenchel[phe]), under the GPL",
    )
    backend: BackendChoice = Field(
        "auto",
        description="backend of the implementation fenchel: ifma (AVX-512 IFMA of x86-64, about ten times as fast), "
        "gmp (every machine), or auto (in each process the faster of those available). All compute the same numbers",
    )
    fraction_bits: int = Field(
        40, ge=8, le=52, description="binary digits after the point (f); a value is rounded to 2^-f"
    )
    largest_dual: PositiveFloat = Field(
        64.0,
        description="largest magnitude of a dual variable with squared and squared-hinge, in multiples of the largest "
        "target; the other losses bound it by 1. The largest target is 1 for classes, and a power of two above the "
        "clients' largest for real targets",
    )
    largest_score: PositiveFloat | None = Field(
        None,
        description="largest magnitude of an inner product x^T w; null: the bound that follows from the longest row, "
        "|alpha| and l2, which wastes some bits if it is loose",
    )
    largest_norm: PositiveFloat = Field(
        65536.0, description="largest squared norm of a client's part of a row that is accepted"
    )

    @property
    def bits(self) -> int:
        """Length of the key."""
        return self.key_bits or BITS_OF_SECURITY[self.security]


class HyFDCASettings(AlgorithmSettings):
    """Dual coordinate ascent on hybrid data (Overman et al. 2022)."""

    splits_features: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = (
        *("introduce", "align", "take_norms", "resume", "catch_up"),
        *("inner_product", "change_dual", "aggregate", "propose", "advance"),
        *("curvature", "figures", "reveal", "release"),
    )

    name: Literal["hyfdca"] = "hyfdca"
    preset: Preset = Field(
        "auto",
        description="local step. linesearch: exact coordinate steps, then the best common factor (all clients "
        "must take part). safe: damped so that the dual objective never falls if all clients take part. "
        "exact: undamped, with the rows' norms. paper: undamped, rows taken as of norm 1 (Algorithm "
        "5). theory: Algorithm 3. auto: linesearch "
        "if all clients take part, otherwise safe",
    )
    picks: PositiveInt | None = Field(
        None,
        description="number of dual coordinates that a client updates in a round (H); null: all of its coordinates. "
        "With common picks the number is rounded up in each sample group, to whole blocks if messages are sparse",
    )
    picking: Literal["independent", "common"] = Field(
        "independent",
        description="sampling of dual coordinates. independent: each client draws its own; common: all holders of a "
        "sample group draw the same ones, so that no update is averaged away and sparse messages can be packed",
    )
    averaging: Literal["all", "active", "pickers"] = Field(
        "all",
        description="divisor of a change: number of the sample's holders (the paper), of those that take part in the "
        "round, or of those that picked it",
    )
    step_size: PositiveFloat = Field(
        1.0, le=1.0, description="outer step size (gamma); the line search chooses its own"
    )
    step_decay: Literal["constant", "inverse-sqrt", "inverse"] = Field(
        "constant", description="step size in round t: step_size, step_size / sqrt(t), or step_size / t"
    )
    trust: Literal["full", "share"] = Field(
        "full", description="trust region c_k of the preset theory: 1, or N_k / N (Theorem 4.4)"
    )
    messages: Literal["dense", "sparse"] = Field(
        "dense",
        description="entries of messages. dense: of all samples; sparse: of picked samples only, which the server "
        "knows in both cases",
    )
    block: PositiveInt | None = Field(
        None,
        description="samples in a ciphertext; null: as many as fit (dense), at most picks (sparse and common), "
        "1 (sparse and independent). With sparse and common, whole blocks are picked",
    )
    privacy: Literal["paillier", "none"] = Field(
        "paillier",
        description="paillier: dual variables and inner products are encrypted. none: the server sees all, "
        "labels too; for comparison only",
    )
    protect_primal: bool = Field(
        False,
        description="encrypt the clients' contributions to the model too; the server learns the model only at "
        "the end, and before that w^T v, ||v||^2 and ||w||^2 as sums over all clients. Costs as many "
        "packed encryptions "
        "and decryptions as the client has features, and twice that with the line search",
    )
    monitor: int = Field(
        1,
        ge=0,
        description="interval of reports of objective, dual objective and gap, in rounds, for the model at the start "
        "of the round (needs dense messages and all clients); 0: no reports",
    )
    layout: Literal["rectangular", "ragged"] = Field(
        "rectangular",
        description="form of a client's data. rectangular: it has every one of its features for every one of its "
        "samples; ragged: it may lack some of these cells",
    )
    check_cells: bool = Field(
        True,
        description="compare keyed pseudonyms of all cells, so that no cell has two holders, with layout: ragged; "
        "false if that is known already",
    )
    encryption: Encryption = Encryption()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        sparse = self.messages == "sparse"
        if sparse and self.picking == "independent" and self.block not in (None, 1):
            raise ValueError(
                f"block: {self.block} given, but sparse messages of independent picks carry single samples; use "
                "picking: common, or block: 1"
            )
        if self.protect_primal and self.privacy == "none":
            raise ValueError(
                "protect_primal: true encrypts the clients' contributions, but privacy: none is given; use privacy: "
                "paillier, or protect_primal: false"
            )
        if self.trust == "share" and self.preset != "theory":
            raise ValueError(
                f"trust: share is a trust region of preset: theory, but preset: {self.preset} is given; use preset: "
                "theory, or leave trust out"
            )
        return self

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return ``samples``: the objective is the mean over all samples, for any sampler."""
        return "samples"

    @property
    def uses_initial(self) -> bool:
        """False, as the model follows from the dual variables, which begin at 0."""
        return False

    @property
    def key_bits(self) -> int | None:
        """Length of the clients' common key; ``None`` in plaintext."""
        return self.encryption.bits if self.privacy == "paillier" else None

    @property
    def encryption_implementation(self) -> Implementation:
        """Implementation of key generation and of arithmetic on ciphertexts."""
        return self.encryption.implementation

    def backend(self) -> Backend:
        """Return the backend for arithmetic on ciphertexts in this process.

        Raises
        ------
        SettingsError
            If the backend is not available on this machine.
        """
        return backend_of(self.encryption.implementation, self.encryption.backend)

    @property
    def hides_model(self) -> bool:
        """True if the clients' contributions to the model are encrypted."""
        return self.protect_primal

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the run, for all operators."""
        if self.privacy == "none":
            return (
                "privacy: none. Nothing is encrypted: the server sees dual variables, and with them the labels, "
                "and all inner products. For comparison on public data only",
            )
        found = []
        if self.key_bits is not None and self.key_bits < 2048:
            found.append(f"encryption.key_bits: {self.key_bits}. Such a key can be broken; for tests only")
        if self.encryption.implementation == "phe":
            found.append(
                "encryption.implementation: phe. The model is the same, and encrypting takes about 20 times as long"
            )
        if self.picks == 1 and not self.protect_primal:
            found.append(
                "picks: 1 without protect_primal. The server sees each client's contribution to the model, and of one "
                "changed sample that is the sample's own row, up to a factor"
            )
        return tuple(found)

    @property
    def compares_cells(self) -> bool:
        """True if clients send pseudonyms of their cells."""
        return self.layout == "ragged" and self.check_cells

    @property
    def monitored(self) -> int:
        """Number of monitored sums: two, and a third for the ridge with an encrypted primal."""
        return 3 if self.protect_primal else 2

    @property
    def picks_blocks(self) -> bool:
        """True if whole blocks are sampled, not single samples."""
        return self.messages == "sparse"

    def step_size_at(self, t: int) -> float:
        """Return the outer step size gamma_t of round ``t``, counted from 1."""
        powers = {"constant": 0.0, "inverse-sqrt": 0.5, "inverse": 1.0}
        return float(self.step_size / t ** powers[self.step_decay])


def line_count(loss: MarginLoss) -> int:
    """Return the number of terms of the line search: two coefficients of a parabola, or values at several steps."""
    return 2 if loss.conjugate_curvature is not None else 1 + len(LINE_STEPS)


def layout_numbers(layout: Layout) -> Indices:
    """Return a layout as an array for messages, shape (4,)."""
    return np.array(astuple(layout), np.int64)


def norm_bits(longest: float) -> int:
    """Return the exponent of the least power of 2 that bounds a squared norm; -1 for the norm 0."""
    return math.ceil(math.log2(longest)) if longest else -1


def target_bits(targets: Vector) -> int:
    """Return the exponent of the least power of 2, at least 1, that bounds the magnitudes of targets."""
    largest = float(np.abs(targets).max())
    return math.ceil(math.log2(largest)) if largest > 1 else 0


def layout_of(numbers: Indices) -> Layout:
    """Return the layout from the array of :func:`layout_numbers`. Raise ``PayloadError`` for another shape."""
    if numbers.shape != (len(fields(Layout)),):
        raise PayloadError(
            f"a layout of ciphertexts has the shape {numbers.shape}; expected {(len(fields(Layout)),)}{SAME_VERSION}"
        )
    return Layout(*(int(number) for number in numbers))


def entries_of(sizes: Indices, blocks: Indices) -> Indices:
    """Return the positions of the samples of some blocks in a vector of consecutive blocks.

    Parameters
    ----------
    sizes
        Number of samples in each block, shape (B,).
    blocks
        Numbers of the blocks, shape (b,).

    Returns
    -------
    Indices
        Positions, block after block, shape (sum of the sizes,).
    """
    starts = np.cumsum(sizes) - sizes
    lengths = sizes[blocks]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts[blocks], lengths) + within


class SampledBlock(NamedTuple):
    """Sampled coordinates D_k of a client in a round.

    Attributes
    ----------
    blocks
        Positions of the sampled blocks among the client's blocks; ``None`` if single samples are drawn.
    entries
        Positions of the samples in the client's aligned order.
    """

    blocks: Indices | None
    entries: Indices


def sampled(
    settings: HyFDCASettings, seed: int, client: str, t: int, groups: Indices, sizes: Indices, quotas: Sequence[int]
) -> SampledBlock:
    """Draw D_k of round ``t``; ``groups`` and ``sizes`` are those of the client's blocks."""
    if settings.picks_blocks:
        blocks = picked_units(settings, seed, client, t, groups, quotas)
        return SampledBlock(blocks, entries_of(sizes, blocks))
    return SampledBlock(None, picked_units(settings, seed, client, t, np.repeat(groups, sizes), quotas))


def picked_units(
    settings: HyFDCASettings, seed: int, client: str, t: int, groups: Indices, quotas: Sequence[int]
) -> Indices:
    """Draw D_k, the units that a client updates in a round, uniformly without replacement.

    Both halves call this function. The draw follows from the run's seed and is not secret from the server.

    Parameters
    ----------
    groups
        Group of each of the client's units, shape (u,). A unit is a sample in aligned order, or a block.
    quotas
        With common sampling, the number of units from each group, in increasing order of group numbers. With
        independent sampling, the total number of units as the only element.

    Returns
    -------
    Indices
        Positions among the client's units, increasing.
    """
    if settings.picks is None:
        return np.arange(len(groups))
    if settings.picking == "independent":
        return _drawn(generator(seed, client, t, "picks"), len(groups), quotas[0])
    drawn = []
    for group, quota in zip(np.unique(groups), quotas, strict=True):
        units = np.flatnonzero(groups == group)
        drawn.append(units[_drawn(generator(seed, "group", int(group), t, "picks"), len(units), quota)])
    return np.sort(np.concatenate(drawn))


def _drawn(random: np.random.Generator, among: int, count: int) -> Indices:
    return np.sort(random.permutation(among)[: min(count, among)])
