"""Secret random numbers of a client, on which its differential privacy rests.

The numbers are derived from a secret that the client draws from the operating system once per run. Each draw is
keyed by its purpose *and* by its subject: the values that it protects, or the instruction that it answers. A retry of
the same work therefore gives the same bytes, so that a server cannot average the noise out. Other work gets
other noise, so that a server cannot subtract it (docs/specifications/fedpdm.md, section 2.1, rules 4 and 6).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fenchel.client.privacy.discrete_gaussian import discrete_gaussian
from fenchel.common.errors import CheckpointError
from fenchel.common.storage.store import write_private

SECRET_BYTES = 32
SECRET = "own.secret"  # noqa: S105 - the name of a file


@dataclass(frozen=True)
class PrivateRandomness:
    """Pseudorandom generator keyed by a client's secret.

    Attributes
    ----------
    secret
        Key of 32 bytes, which never leaves the client.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def kept_in(cls, folder: Path | None) -> PrivateRandomness:
        """Read the secret from a folder, or draw and write one if there is none yet.

        ``None`` draws a secret that exists in memory only. A file of the wrong length raises ``CheckpointError``.
        """
        if folder is None:
            return cls(os.urandom(SECRET_BYTES))
        path = folder / SECRET
        if not path.exists():
            write_private(path, os.urandom(SECRET_BYTES))
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise CheckpointError(
                f"the secret of this client's noise has {len(secret)} bytes, expected {SECRET_BYTES}, so it is "
                "damaged and the client cannot continue the run. Restore an undamaged copy, or begin a new run "
                "without this client",
                source=path,
            )
        return cls(secret)

    def derived(self, context: str) -> PrivateRandomness:
        """Return another source of random numbers, as secret as this one, derived from the secret and a context."""
        return PrivateRandomness(self._key("derived", context))

    def generator(self, *context: str | int | bytes) -> np.random.Generator:
        """Return a NumPy generator for numbers that are never disclosed, such as mini-batches."""
        key = self._key(*context)
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))

    def seed(self, *context: str | int | bytes) -> int:
        """Return a seed of 64 bits that can be disclosed, as no other draw follows from it."""
        return int.from_bytes(self._key(*context)[:8], "little")

    def discrete_gaussian(self, count: int, scale: float, *context: str | int | bytes) -> NDArray[np.int64]:
        """Return samples of the discrete Gaussian distribution, shape (count,).

        Without the secret they cannot be distinguished from independent samples, even if other draws are known.
        """
        return discrete_gaussian(self._key(*context, scale.hex()), scale, count)

    def _key(self, *context: str | int | bytes) -> bytes:
        """Return 32 bytes that depend on the secret and on each part of the context and its length."""
        mac = hmac.new(self.secret, digestmod=hashlib.sha256)
        for part in context:
            encoded = part if isinstance(part, bytes) else str(part).encode()
            mac.update(f"{type(part).__name__}:{len(encoded)}:".encode() + encoded)
        return mac.digest()
