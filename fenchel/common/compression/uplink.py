"""Processing of a vector before a client sends it.

The steps are the same for every algorithm, in this order:

1. *sparsify*: some coordinates are chosen;
2. *clip*: their difference from the model at the start of the round is shortened;
3. *noise*: Gaussian noise is added to every chosen value;
4. *dtype*: values are rounded to the data type of messages.

:class:`Sent` has the result of all four steps. Algorithms whose clients need the values that the server received (a
public dual variable, a mirrored replica) read them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.sparsification import kept, top_k, uplink_support
from fenchel.common.errors import PrivacyBudgetError
from fenchel.common.randomness import generator, public_seed
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.values import SparseVector


class SecretRandomness(Protocol):
    """Source of random numbers that only one client can draw."""

    def generator(self, *context: str | int | bytes) -> np.random.Generator:
        """Return a NumPy generator for the purpose that ``context`` names."""

    def seed(self, *context: str | int | bytes) -> int:
        """Return a 64-bit number for the purpose that ``context`` names."""


class UploadProtection(Protocol):
    """Differential privacy of one client's uploads, implemented in ``fenchel/client/privacy/protection.py``."""

    @property
    def facts(self) -> PrivacyFacts:
        """Public facts of the run from which the sensitivity follows."""

    @property
    def randomness(self) -> SecretRandomness:
        """Source of noise, batches and index sets."""

    @property
    def clip_gradient(self) -> float | None:
        """Norm to which the gradient of every sample is clipped; ``None`` if uploads are clipped instead."""

    @property
    def clip_update(self) -> float | None:
        """Norm to which an upload's difference from the round's initial model is clipped; ``None``: gradients are."""

    def sensitivity(self, local: LocalMap, difference: DualDifference) -> tuple[float, DualDifference]:
        """Return the sensitivity of a round's upload, and the difference of dual variables after it."""

    def released(
        self, values: Vector, t: int, name: str, sensitivity: float, largest: float, occasion: bytes
    ) -> Vector:
        """Add noise to ``values``, charge the upload to the client's ledger, and return the sum, shape (k,)."""


@dataclass(frozen=True)
class Sent:
    """Processed vector that a client sends.

    Attributes
    ----------
    coordinates
        Indices of the sent coordinates, increasing, shape (k,), or a slice of all.
    values
        Values that the server reads, in the vector's dtype, shape (k,).
    wire
        Value for the reply: all values, those of an index set that the server knows, or indices with values.
    """

    coordinates: Indices | slice
    values: Vector
    wire: Vector | SparseVector


@dataclass(frozen=True)
class ClientUplink:
    """Uplink of one client in one run.

    Attributes
    ----------
    settings
        Settings of the steps.
    seed
        Seed of the run.
    client
        Id of the client.
    protection
        Source of the noise under differential privacy; ``None`` without it.
    """

    settings: Uplink
    seed: int
    client: str
    protection: UploadProtection | None = None

    @property
    def noisy(self) -> bool:
        """True if sent values have noise."""
        return self.protection is not None or self.settings.noise is not None

    @property
    def changes(self) -> bool:
        """True if sent vectors may differ from the given ones."""
        return self.protection is not None or not self.settings.is_plain

    def send(
        self,
        vector: Vector,
        t: int,
        *,
        around: Vector,
        minus: Vector | None = None,
        sensitivity: float | None = None,
        largest: float = 0.0,
        occasion: bytes = b"",
        name: str = "model",
    ) -> Sent:
        """Return the processed ``vector`` of round ``t``.

        Parameters
        ----------
        vector
            Vector to send, shape (d,).
        around
            Public reference near to the vector, shape (d,): the model at the start of the round.
        minus
            Version of the vector that the server already has, shape (d,). Only the difference is sent, which is
            computed at the end from the values with their noise.
        sensitivity
            L2 sensitivity of ``vector``, required under differential privacy.
        largest
            Magnitude of the largest public number from which the vector was computed.
        occasion
            Digest of the instruction and of the client's state before it.
        name
            Name that distinguishes several vectors of one round.

        Raises
        ------
        PrivacyBudgetError
            If the sensitivity is unknown, or no noise protects the values.
        BudgetSpentError
            If the upload exceeds the privacy budget.
        """
        chosen, seed = self._coordinates(vector, around, t, name)
        values = self._near(vector[chosen], around[chosen])
        if self.protection is not None:
            if sensitivity is None:
                raise PrivacyBudgetError(
                    f"{name!r} is not sent, because its sensitivity is unknown; use an algorithm that "
                    "docs/privacy.md lists",
                    client=self.client,
                )
            values = self.protection.released(values, t, name, sensitivity, largest, occasion)
        elif self.settings.noise is not None:
            noise = generator(self.seed, self.client, t, "noise", name).standard_normal(values.size)
            values = values + (self.settings.noise * noise).astype(values.dtype)
        if minus is not None:
            values = values - minus[chosen]
        rounded = values.astype(self.settings.dtype or values.dtype, copy=False)
        wire: Vector | SparseVector = rounded
        if self.settings.sparsify is not None and not self.settings.sparsify.is_shared:
            assert not isinstance(chosen, slice)
            wire = SparseVector(chosen, rounded, vector.size, seed)
        return Sent(chosen, rounded.astype(vector.dtype, copy=False), wire)

    def _near(self, values: Vector, around: Vector) -> Vector:
        """Clip the difference from ``around`` to the allowed norm."""
        bound = self.settings.clip if self.protection is None else self.protection.clip_update
        if bound is None:
            return values
        # Double precision, because a norm in float32 may be too small by many units in the last place, and squares of
        # small values underflow. The sensitivity covers the rounding of the sent values (Protection.rounding).
        difference = np.subtract(values, around, dtype=np.float64)
        norm = float(np.linalg.norm(difference))
        if not np.isfinite(norm):
            return around.copy()  # the norm bound must also hold for non-finite data
        if norm <= bound:
            return values
        difference *= bound / norm
        difference += around
        return difference.astype(values.dtype, copy=False)

    def _coordinates(self, vector: Vector, around: Vector, t: int, name: str) -> tuple[Indices | slice, int | None]:
        """Return the coordinates to send, and the 64-bit seed that is sent in place of random ones."""
        sparsifier = self.settings.sparsify
        if sparsifier is None:
            return slice(None), None
        if sparsifier.is_shared:
            return uplink_support(sparsifier, around, self.seed, t), None
        count = kept(sparsifier.keep, vector.size)
        if sparsifier.support == "top-k":
            return top_k(vector, count), None
        if self.protection is not None:
            seed = self.protection.randomness.seed("support", t, name)
        else:
            seed = public_seed(self.seed, self.client, t, "support", name)
        return seeded_support(seed, vector.size, count), seed
