"""Settings of HyFDCA, and what its two halves must compute alike."""

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
from fenchel.common.objectives.coordinate import conjugate_curvature
from fenchel.common.objectives.losses import MarginLoss
from fenchel.common.randomness import generator
from fenchel.common.settings.algorithm import AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Sampler
from fenchel.common.settings.section import Section
from fenchel.common.version import SAME_VERSION

LINE_STEPS = 2.0 ** -np.arange(0.0, 31.0)
"""Step sizes that the line search compares where it has no closed form (logistic loss), shape (31,)."""

Preset: TypeAlias = Literal["auto", "linesearch", "safe", "exact", "paper", "theory"]


class Encryption(Section):
    """Size of the key and of the numbers under it."""

    security: Security = Field(
        128,
        description="length in bits of a symmetric key that is as hard to guess as the Paillier key is to break: 112 "
        "(a key of 2048 bits), 128 (3072) or 192 (7680)",
    )
    key_bits: PositiveInt | None = Field(
        None, description="length of the Paillier key; null: that of `security`. Less than 2048 in tests only"
    )
    implementation: Implementation = Field(
        "fenchel",
        description="fenchel, or phe: that library makes the key, encrypts, adds and decrypts. The model is the "
        "same, and encrypting takes about 20 times as long. It is an extra (fenchel[phe]), under the GPL",
    )
    backend: BackendChoice = Field(
        "auto",
        description="code that computes within fenchel: ifma (the instructions AVX-512 IFMA of x86-64, about ten times "
        "as fast), gmp (everywhere), or auto: in each process the faster one that its machine has. All compute the "
        "same numbers",
    )
    fraction_bits: int = Field(
        40, ge=8, le=52, description="binary digits after the point (f); a value is rounded to 2^-f"
    )
    largest_dual: PositiveFloat = Field(
        64.0,
        description="largest magnitude of a dual variable of a loss that does not bound it (squared, "
        "squared-hinge), in multiples of the largest target (1 for classes; a power of two above the clients' "
        "largest for real targets); for the other losses it is 1",
    )
    largest_score: PositiveFloat | None = Field(
        None,
        description="largest magnitude of an inner product x^T w; null takes the bound that follows from the "
        "longest row, |alpha| and l2, which wastes some bits where it is far from reached",
    )
    largest_norm: PositiveFloat = Field(
        65536.0, description="largest squared norm of a client's part of a row that is accepted"
    )

    @property
    def bits(self) -> int:
        """Length of the key."""
        return self.key_bits or BITS_OF_SECURITY[self.security]


class HyFDCASettings(AlgorithmSettings):
    """Hybrid federated dual coordinate ascent (Overman, Blum and Klabjan 2022, Algorithm 1)."""

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
        "must take part). safe: damped so that the dual objective never falls where everybody takes part. "
        "exact: undamped, with the rows' norms. paper: undamped, rows taken as of norm 1 (Algorithm "
        "5). theory: Algorithm 3. auto: linesearch "
        "where everybody takes part, else safe",
    )
    picks: PositiveInt | None = Field(
        None,
        description="dual coordinates that a client updates in a round (H); null: all that it holds. With common "
        "picks it is rounded up in each sample group, to whole blocks if messages are sparse",
    )
    picking: Literal["independent", "common"] = Field(
        "independent",
        description="independent: each client draws its own. common: all holders of a sample group draw the "
        "same, so that nothing is averaged away and sparse messages can be packed",
    )
    averaging: Literal["all", "active", "pickers"] = Field(
        "all",
        description="a change is divided by the number of the sample's holders (the paper), of those that take "
        "part in the round, or of those that picked it",
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
        description="dense: entries of all samples travel. sparse: those of picked samples only (which ones "
        "the server knows either way)",
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
        description="report objective, dual objective and gap every so many rounds (of the model that the round "
        "began with; needs dense messages and everybody); 0: never",
    )
    layout: Literal["rectangular", "ragged"] = Field(
        "rectangular",
        description="rectangular: a client holds every feature of its own for every sample of its own. ragged: "
        "it may lack some of these cells",
    )
    check_cells: bool = Field(
        True,
        description="with layout: ragged, compare keyed pseudonyms of all cells so that none is held twice; "
        "false where this is known already",
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
            raise ValueError("protect_primal: true needs privacy: paillier")
        return self

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """The mean over all samples, whoever is drawn how often."""
        return "samples"

    @property
    def key_bits(self) -> int | None:
        """Length of the clients' common key; ``None`` in plaintext."""
        return self.encryption.bits if self.privacy == "paillier" else None

    @property
    def encryption_implementation(self) -> Implementation:
        """Maker of that key, which computes on ciphertexts, too."""
        return self.encryption.implementation

    def backend(self) -> Backend:
        """Return the code that computes on ciphertexts in this process.

        Raises
        ------
        SettingsError
            This machine does not have it.
        """
        return backend_of(self.encryption.implementation, self.encryption.backend)

    @property
    def hides_model(self) -> bool:
        """True if the clients' contributions to the model are encrypted."""
        return self.protect_primal

    @property
    def warnings(self) -> tuple[str, ...]:
        """What everybody should know before such a run."""
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
        """Whether clients tell pseudonyms of their cells."""
        return self.layout == "ragged" and self.check_cells

    @property
    def monitored(self) -> int:
        """How many figures clients share: two, and with an encrypted primal that of the ridge."""
        return 3 if self.protect_primal else 2

    @property
    def picks_blocks(self) -> bool:
        """Whether whole blocks are picked, not single samples."""
        return self.messages == "sparse"

    def step_size_at(self, t: int) -> float:
        """Outer step size gamma_t of round ``t``, counted from 1."""
        powers = {"constant": 0.0, "inverse-sqrt": 0.5, "inverse": 1.0}
        return float(self.step_size / t ** powers[self.step_decay])


def line_count(loss: MarginLoss) -> int:
    """Return how many numbers a client shares for the line search: two of a parabola, or values at some steps."""
    return 2 if conjugate_curvature(loss) is not None else 1 + len(LINE_STEPS)


def layout_numbers(layout: Layout) -> Indices:
    """Return a layout as an array that can travel, shape (4,)."""
    return np.array(astuple(layout), np.int64)


def norm_bits(longest: float) -> int:
    """Return the least power of 2 that is not below a squared norm, as an exponent: what a client tells of its rows."""
    return math.ceil(math.log2(longest)) if longest else -1


def target_bits(targets: Vector) -> int:
    """Return the least power of 2, from 1 on, that is not below any target's magnitude, as an exponent."""
    largest = float(np.abs(targets).max())
    return math.ceil(math.log2(largest)) if largest > 1 else 0


def layout_of(numbers: Indices) -> Layout:
    """Undo :func:`layout_numbers`."""
    if numbers.shape != (len(fields(Layout)),):
        raise PayloadError(f"an array of shape {numbers.shape} is no layout of ciphertexts{SAME_VERSION}")
    return Layout(*(int(number) for number in numbers))


def entries_of(sizes: Indices, blocks: Indices) -> Indices:
    """Return the places of some blocks' samples in a vector of consecutive blocks.

    Parameters
    ----------
    sizes
        Samples in each block, shape (B,).
    blocks
        Which blocks, shape (b,).

    Returns
    -------
    Indices
        Block after block, shape (sum of the sizes,).
    """
    starts = np.cumsum(sizes) - sizes
    lengths = sizes[blocks]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts[blocks], lengths) + within


class SampledBlock(NamedTuple):
    """D_k, what a client picks in a round.

    Attributes
    ----------
    blocks
        Places of the picked blocks among its own; ``None`` if it picks single samples.
    entries
        Places of the picked samples in its aligned order.
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
    """Draw D_k, what a client updates in a round: uniformly, without replacement.

    Both halves call this: the picks follow from the run's seed, and so are no secret from the server.

    Parameters
    ----------
    groups
        Group of each unit that the client holds, shape (u,): of each sample in aligned order, or, where blocks are
        picked, of each block.
    quotas
        With common picks: how many units of each of its groups (in increasing order of their numbers) are picked. With
        independent picks: one number, how many of all.

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
