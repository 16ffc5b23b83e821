"""Problem whose samples and features are spread over clients, as known to the server.

All of it follows from the clients' reports in the setup. It is computed when needed, and again after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.aligned import Vectors
from fenchel.algorithms.hyfdca.alignment import Alignment, Arrangement, HeldEntries, Slice, align, align_features
from fenchel.algorithms.hyfdca.dual_ranges import DualRanges, Kind
from fenchel.algorithms.hyfdca.sampled_blocks import SampledBlocks
from fenchel.algorithms.hyfdca.settings import Encryption, HyFDCASettings
from fenchel.common.arrays import Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import FenchelError, RunStoppedError
from fenchel.common.objectives.losses import MarginLoss
from fenchel.common.randomness import generator
from fenchel.common.wire.schema import ArraySpec, CipherSpec, Expected
from fenchel.common.wire.values import Value

_SHORTEST = -100  # binary exponent at which bounds on a squared norm are clamped from below


@dataclass(frozen=True)
class Hybrid:
    """Holders of samples and features, and layouts of vectors over them, encrypted or not.

    Attributes
    ----------
    local_data
        Samples and features of each client, by client id.
    settings, seed
        Section ``algorithm`` of the settings, and seed of the run.
    loss, l2
        Loss and regularisation of the objective.
    features
        Number M of features of the whole problem.
    norm_bits
        For each client, an exponent such that squared norms of its parts of rows are at most ``2^norm_bits``.
    target_bits
        For each client, an exponent such that its targets are at most ``2^target_bits`` in magnitude.
    key
        Public key of the clients; ``None`` in plaintext.
    ascends
        Whether the dual objective never decreases.
    """

    settings: HyFDCASettings
    seed: int
    loss: MarginLoss
    l2: float
    features: int
    local_data: Mapping[str, HeldEntries]
    norm_bits: Mapping[str, int]
    target_bits: Mapping[str, int]
    key: PublicKey | None
    ascends: bool

    def prepare(self) -> None:
        """Compute the alignment in advance, which takes seconds for millions of samples."""
        _ = self.alignment, self.feature_arrangement

    @cached_property
    def ranges(self) -> DualRanges:
        """Bounds on the numbers of the method."""
        every = np.concatenate([holding.samples for holding in self.local_data.values()])
        _, holders = np.unique(every.view(np.dtype((np.void, every.shape[1]))), return_counts=True)
        return DualRanges(
            self.settings,
            self.loss,
            self.l2,
            samples=len(every),
            clients=len(self.local_data),
            holders=int(holders.max(initial=1)),
            longest_part=2.0 ** max(self.norm_bits.values()),
            largest_target=2.0 ** max(self.target_bits.values(), default=0),
            ascends=self.ascends,
        )

    @cached_property
    def alignment(self) -> Alignment:
        """Alignment of the samples."""
        return align(
            self.local_data,
            features=self.features,
            block=self.ranges.block,
            ragged=self.settings.layout == "ragged",
            random=generator(self.seed, "alignment"),
        )

    @cached_property
    def feature_arrangement(self) -> Arrangement:
        """Arrangement of the features: in blocks with equal holders if encrypted, otherwise in their own order."""
        if not self.settings.protect_primal:
            return _in_own_places(self.local_data, self.features)
        return align_features(self.local_data, features=self.features, block=self.ranges.layouts["primal"].slots)

    @cached_property
    def picks(self) -> SampledBlocks:
        """Sampler of the blocks or samples of a round."""
        return SampledBlocks(self.settings, self.seed, self.alignment, self.ranges.block)

    @property
    def scale(self) -> float:
        """Divisor of contributions: lambda N."""
        return self.l2 * self.alignment.samples

    @property
    def shares_samples(self) -> bool:
        """True if any client holds only a part of a sample's features."""
        return bool((self.alignment.item_holders > 1).any())

    # Vectors over samples and features

    @cached_property
    def duals(self) -> Vectors:
        """Operations on dual variables and their changes, over samples."""
        return self.over_samples("dual")

    @cached_property
    def scores(self) -> Vectors:
        """Operations on inner products, over samples."""
        return self.over_samples("score")

    @cached_property
    def primals(self) -> Vectors:
        """Operations on contributions to the model, over features."""
        cipher = None
        if self.settings.protect_primal:
            assert self.key is not None
            cipher = self.key, self.ranges.layouts["primal"]
        return Vectors(self.feature_arrangement, cipher)

    def over_samples(self, kind: Kind) -> Vectors:
        """Return the operations on vectors over samples of one kind."""
        return Vectors(self.alignment, None if self.key is None else (self.key, self.ranges.layouts[kind]))

    def figures_expected(self, count: int) -> Expected:
        """Return the schema of ``count`` numbers that are summed over clients."""
        if self.key is None:
            return ArraySpec(np.float64, (count,))
        layout = self.ranges.layouts["figure"]
        return CipherSpec(self.key, layout, layout.ciphertexts(count) * layout.slots)

    def summed(self, shares: Sequence[Value]) -> Value:
        """Return the sum of the clients' numbers, encrypted or not."""
        if self.key is None:
            total: Vector = np.sum([share for share in shares if isinstance(share, np.ndarray)], axis=0)
            return total
        first, *others = (
            CipherVector.from_checked(share, self.key) for share in shares if isinstance(share, Ciphertexts)
        )
        return sum(others, first).to_wire()


def _in_own_places(local_data: Mapping[str, HeldEntries], features: int) -> Arrangement:
    """Return the arrangement of features in their own order, without blocks."""
    nothing = np.empty(0, np.int64)
    slices = {
        client: Slice(nothing, holding.features, nothing, nothing, nothing, nothing)
        for client, holding in local_data.items()
    }
    return Arrangement(features, nothing, nothing, (), slices)


def agreed_key(
    keys: Mapping[str, NDArray[np.uint8]], bits: int | None, expected: PublicKey | None
) -> NDArray[np.uint8]:
    """Return the modulus n of the clients' common public key as big-endian bytes; empty in plaintext.

    Parameters
    ----------
    keys
        n of each client's key, by client id.
    bits
        Length of the key in the settings; ``None`` without encryption.
    expected
        Key with which the server was started, if any.

    Raises
    ------
    RunStoppedError
        If keys differ from each other, from ``expected`` or from the length ``bits``, or a key is invalid.
    """
    if bits is None:
        return np.empty(0, np.uint8)
    found = {client: _public_key(client, keys[client]) for client in sorted(keys)}
    first = next(iter(found))
    for client, key in found.items():
        if expected is not None and key != expected:
            raise RunStoppedError(
                f"client {client} has the key {key.fingerprint}, but --public-key of the server has "
                f"{expected.fingerprint}; give every client the secrets of that key"
            )
        if key != found[first]:
            raise RunStoppedError(
                f"clients {first} and {client} have different keys ({found[first].fingerprint} and "
                f"{key.fingerprint}); give all clients the same file of secrets, made by fenchel keys"
            )
    if found[first].bits != bits:
        raise RunStoppedError(
            f"the clients' key has {found[first].bits} bits, but algorithm.encryption.key_bits is {bits}; change "
            "the setting, or make a key of that length with fenchel keys"
        )
    return keys[first].copy()


def _public_key(client: str, n: NDArray[np.uint8]) -> PublicKey:
    try:
        return PublicKey(int.from_bytes(n.tobytes(), "big"))
    except FenchelError as error:
        raise RunStoppedError(f"client {client} has an invalid public key: {error}") from None


def checked_norm_bits(norm_bits: int, client: str, encryption: Encryption) -> int:
    """Return the binary exponent of a client's bound on squared norms, clamped from below.

    Raise ``RunStoppedError`` if it exceeds ``largest_norm``.
    """
    if norm_bits > math.ceil(math.log2(encryption.largest_norm)):
        raise RunStoppedError(
            f"client {client} has a part of a row with a squared norm of about 2^{norm_bits}, above "
            f"algorithm.encryption.largest_norm ({encryption.largest_norm:g}); scale the rows (data.scale: "
            "unit-rows), or raise the setting"
        )
    return max(norm_bits, _SHORTEST)
