"""What happens to a vector before it leaves the client.

In this order, whatever the algorithm:

1. *sparsify*: some coordinates are chosen;
2. *clip*: their difference from the model that the round began with is shortened;
3. *noise*: Gaussian noise on every chosen value;
4. *dtype*: rounded to the type on the wire.

An algorithm whose client must know what the server saw (a public dual variable, a mirrored replica) reads it from
:class:`Sent`, after all four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.shared_index_sets import uplink_support
from fenchel.common.compression.sparsification import kept, top_k
from fenchel.common.errors import PrivacyBudgetError
from fenchel.common.randomness import generator, public_seed
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.values import SparseVector


class SecretRandomness(Protocol):
    """Random numbers that only one client can draw."""

    def generator(self, *context: str | int | bytes) -> np.random.Generator:
        """Return a generator for one purpose."""

    def seed(self, *context: str | int | bytes) -> int:
        """Return 64 bits for one purpose."""


class UploadProtection(Protocol):
    """Differential privacy of one client's uploads; ``fenchel/client/privacy/protection.py`` has the implementation."""

    @property
    def facts(self) -> PrivacyFacts:
        """Public facts that the sensitivity follows from."""

    @property
    def randomness(self) -> SecretRandomness:
        """Source of noise, batches and supports."""

    @property
    def clip_gradient(self) -> float | None:
        """Norm to which the gradient of every sample is clipped."""

    @property
    def clip_update(self) -> float | None:
        """Norm to which an upload is clipped, as a difference from the model that the round began with."""

    def sensitivity(self, local: LocalMap, difference: DualDifference) -> tuple[float, DualDifference]:
        """Return the sensitivity of a round's upload, and the difference of dual variables after it."""

    def released(
        self, values: Vector, t: int, name: str, sensitivity: float, largest: float, occasion: bytes
    ) -> Vector:
        """Return ``values`` with their noise, shape (k,), charged to the client's ledger."""


@dataclass(frozen=True)
class Sent:
    """What left the client of a vector.

    Attributes
    ----------
    coordinates
        Increasing indices of shape (k,), or a slice of them all.
    values
        Shape (k,), as the server reads them, in the vector's dtype.
    wire
        What goes into the reply: all values, those of a support that the server knows, or indices with values.
    """

    coordinates: Indices | slice
    values: Vector
    wire: Vector | SparseVector


@dataclass(frozen=True)
class ClientUplink:
    """The way up of one client in one run.

    Attributes
    ----------
    settings
        What is done.
    seed
        Of the run.
    client
        Its id.
    protection
        Where the noise comes from under differential privacy.
    """

    settings: Uplink
    seed: int
    client: str
    protection: UploadProtection | None = None

    @property
    def noisy(self) -> bool:
        """Whether what is sent carries noise."""
        return self.protection is not None or self.settings.noise is not None

    @property
    def changes(self) -> bool:
        """Whether vectors do not leave as they are."""
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
        """Return what leaves of ``vector`` in round ``t``.

        Parameters
        ----------
        vector
            Shape (d,).
        around
            What everybody knows that it is near to, shape (d,): the model that the round began with.
        minus
            What the server has of this vector already, shape (d,): only the difference travels. It is taken at the end,
            from the values with their noise.
        sensitivity
            How far one sample can move ``vector``; needed under differential privacy.
        largest
            Magnitude of the largest public number that it was computed from.
        occasion
            Stands for the question that is answered, and for the state before it.
        name
            Tells several vectors of one round apart.
        """
        coordinates = self._coordinates(vector, around, t, name)
        chosen = slice(None) if coordinates is None else coordinates.indices
        values = self._near(vector[chosen], around[chosen])
        if self.protection is not None:
            if sensitivity is None:
                raise PrivacyBudgetError(
                    f"the sensitivity of {name!r} is not known, so it stays here; use an "
                    "algorithm that docs/privacy.md lists",
                    client=self.client,
                )
            values = self.protection.released(values, t, name, sensitivity, largest, occasion)
        elif self.settings.noise is not None:
            noise = generator(self.seed, self.client, t, "noise", name).standard_normal(values.size)
            values = values + (self.settings.noise * noise).astype(values.dtype)
        if minus is not None:
            values = values - minus[chosen]
        rounded = values.astype(self.settings.dtype or values.dtype, copy=False)
        if coordinates is None or coordinates.are_shared:
            wire: Vector | SparseVector = rounded
        else:
            wire = SparseVector(coordinates.indices, rounded, vector.size, coordinates.seed)
        return Sent(chosen, rounded.astype(vector.dtype, copy=False), wire)

    def _near(self, values: Vector, around: Vector) -> Vector:
        """Shorten the difference to the norm that is allowed."""
        bound = self.settings.clip if self.protection is None else self.protection.clip_update
        if bound is None:
            return values
        # In double precision, whatever the model's: a norm in float32 is too short by many units in the last place, and
        # squares of small values vanish there. Rounding what is sent is in the sensitivity (Protection.rounding).
        difference = np.subtract(values, around, dtype=np.float64)
        norm = float(np.linalg.norm(difference))
        if not np.isfinite(norm):
            return around.copy()  # whatever came of the data, what is sent lies within the bound
        if norm <= bound:
            return values
        difference *= bound / norm
        difference += around
        return difference.astype(values.dtype, copy=False)

    def _coordinates(self, vector: Vector, around: Vector, t: int, name: str) -> _Coordinates | None:
        sparsifier = self.settings.sparsify
        if sparsifier is None:
            return None
        if sparsifier.is_shared:
            return _Coordinates(uplink_support(sparsifier, around, self.seed, t), are_shared=True)
        count = kept(sparsifier.keep, vector.size)
        if sparsifier.support == "top-k":
            return _Coordinates(top_k(vector, count))
        seed = self._support_seed(t, name)
        return _Coordinates(seeded_support(seed, vector.size, count), seed=seed)

    def _support_seed(self, t: int, name: str) -> int:
        """Draw the 64 bits that a random support follows from, and that are sent in its place."""
        if self.protection is not None:
            return self.protection.randomness.seed("support", t, name)
        return public_seed(self.seed, self.client, t, "support", name)


@dataclass(frozen=True)
class _Coordinates:
    indices: Indices
    seed: int | None = None
    are_shared: bool = False
