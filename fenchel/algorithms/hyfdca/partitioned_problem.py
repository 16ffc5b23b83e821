"""A problem whose samples and features are spread over clients, as far as the server knows it.

Everything here follows from what the clients said in the beginning: it is computed when needed, and again after a
restart, and never changes.
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

_SHORTEST = -100  # shorter rows than 2^-50 need no narrower slots


@dataclass(frozen=True)
class Hybrid:
    """Who holds what, and how vectors over samples and features are laid out, encrypted or not.

    holdings: what each client holds, by client id.

    Attributes
    ----------
    settings, seed
        Of the run.
    loss, l2
        Of the objective.
    features
        M, features of the whole problem.
    norm_bits
        Of each client: the squared norm of its longest part of a row is at most ``2^norm_bits``.
    target_bits
        Of each client: its targets are at most ``2^target_bits`` in magnitude.
    key
        The clients' public key; ``None`` in plaintext.
    ascends
        Whether the dual objective never falls.
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
        """Work out what is needed in every round and takes long: for millions of samples, seconds."""
        _ = self.alignment, self.feature_arrangement

    @cached_property
    def ranges(self) -> DualRanges:
        """How large numbers can be."""
        every = np.concatenate([holding.samples for holding in self.local_data.values()])
        _, holders = np.unique(every.view(np.dtype((np.void, every.shape[1]))), return_counts=True)
        return DualRanges(
            self.settings,
            self.settings.key_bits,
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
        """Who holds which samples."""
        return align(
            self.local_data,
            features=self.features,
            block=self.ranges.block,
            ragged=self.settings.layout == "ragged",
            random=generator(self.seed, "alignment"),
        )

    @cached_property
    def feature_arrangement(self) -> Arrangement:
        """Where features lie: in their own places, or where they are encrypted in blocks with equal holders."""
        if not self.settings.protect_primal:
            return _in_own_places(self.local_data, self.features)
        return align_features(self.local_data, features=self.features, block=self.ranges.layouts["primal"].slots)

    @cached_property
    def picks(self) -> SampledBlocks:
        """Which samples are picked."""
        return SampledBlocks(self.settings, self.seed, self.alignment, self.ranges.block)

    @property
    def scale(self) -> float:
        """lambda N."""
        return self.l2 * self.alignment.samples

    @property
    def shares_samples(self) -> bool:
        """Whether some client holds only a part of a sample's features."""
        return bool((self.alignment.sample_holders > 1).any())

    # Vectors

    @cached_property
    def duals(self) -> Vectors:
        """Dual variables and their changes, over samples."""
        return self.over_samples("dual")

    @cached_property
    def scores(self) -> Vectors:
        """Inner products, over samples."""
        return self.over_samples("score")

    @cached_property
    def primals(self) -> Vectors:
        """Contributions to the model, over features."""
        cipher = None
        if self.settings.protect_primal:
            assert self.key is not None
            cipher = self.key, self.ranges.layouts["primal"]
        return Vectors(self.feature_arrangement, cipher)

    def over_samples(self, kind: Kind) -> Vectors:
        """Return how vectors over samples are computed with."""
        return Vectors(self.alignment, None if self.key is None else (self.key, self.ranges.layouts[kind]))

    def figures_expected(self, count: int) -> Expected:
        """Return what a client sends when it shares some numbers that are summed over clients."""
        if self.key is None:
            return ArraySpec(np.float64, (count,))
        layout = self.ranges.layouts["figure"]
        return CipherSpec(self.key, layout, layout.ciphertexts(count) * layout.slots)

    def summed(self, shares: Sequence[Value]) -> Value:
        """Return the sum of such numbers over clients."""
        if self.key is None:
            total: Vector = np.sum([share for share in shares if isinstance(share, np.ndarray)], axis=0)
            return total
        first, *others = (CipherVector.from_wire(share, self.key) for share in shares if isinstance(share, Ciphertexts))
        return sum(others, first).to_wire()


def _in_own_places(local_data: Mapping[str, HeldEntries], features: int) -> Arrangement:
    """Return the arrangement in which each feature stands in its own place: there are no blocks."""
    nothing = np.empty(0, np.int64)
    slices = {
        client: Slice(nothing, holding.features, nothing, nothing, nothing, nothing)
        for client, holding in local_data.items()
    }
    return Arrangement(features, nothing, nothing, (), slices)


def agreed_key(
    keys: Mapping[str, NDArray[np.uint8]], bits: int | None, expected: PublicKey | None
) -> NDArray[np.uint8]:
    """Return the public key that all clients have: n, big-endian; empty in plaintext.

    Parameters
    ----------
    keys
        What each client says, by client id.
    bits
        Length that the settings ask for; ``None``: nothing is encrypted.
    expected
        The key that the server was given, if any.
    """
    if bits is None:
        return np.empty(0, np.uint8)
    found = {client: _public_key(client, keys[client]) for client in sorted(keys)}
    first = next(iter(found))
    for client, key in found.items():
        if expected is not None and key != expected:
            raise RunStoppedError(
                f"client {client} has the key {key.fingerprint}, but the server was given {expected.fingerprint} "
                "(--public-key): give every client the secrets that belong to it"
            )
        if key != found[first]:
            raise RunStoppedError(
                f"clients {first} and {client} have different keys ({found[first].fingerprint} and "
                f"{key.fingerprint}); all clients of a federation share one file of secrets, which fenchel keys makes"
            )
    if found[first].bits != bits:
        raise RunStoppedError(
            f"the clients' key has {found[first].bits} bits, but algorithm.encryption.key_bits is {bits}"
        )
    return keys[first].copy()


def _public_key(client: str, n: NDArray[np.uint8]) -> PublicKey:
    try:
        return PublicKey(int.from_bytes(n.tobytes(), "big"))
    except FenchelError as error:
        raise RunStoppedError(f"client {client} has no usable public key: {error}") from None


def checked_norm_bits(norm_bits: int, client: str, encryption: Encryption) -> int:
    """Return what a client said of its longest part of a row, if the settings leave room for it."""
    if norm_bits > math.ceil(math.log2(encryption.largest_norm)):
        raise RunStoppedError(
            f"client {client} has a part of a row whose squared norm is about 2^{norm_bits}, but "
            f"algorithm.encryption.largest_norm is {encryption.largest_norm:g}; scale rows (data.scale: unit-rows), "
            "or raise that setting"
        )
    return max(norm_bits, _SHORTEST)
