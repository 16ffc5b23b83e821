"""Random numbers that privacy rests on: nobody but this client can redo them.

They come from a secret that a client draws from the operating system once a run. Every draw is keyed by what it is
for *and* by what it is about (the values that it protects, the instruction that it answers). So a retry of
the same work gives the same bytes, which a server cannot average the noise out of, and other work gets other
noise, which it cannot subtract (docs/specifications/fedpdm.md, section 2.1, rules 4 and 6).
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
    """A client's own source of random numbers.

    Attributes
    ----------
    secret
        32 bytes that never leave the client.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def kept_in(cls, folder: Path | None) -> PrivateRandomness:
        """Return the one whose secret a folder holds; draw and write it if there is none yet.

        ``None`` draws a secret that lives as long as the process.
        """
        if folder is None:
            return cls(os.urandom(SECRET_BYTES))
        path = folder / SECRET
        if not path.exists():
            write_private(path, os.urandom(SECRET_BYTES))
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise CheckpointError(
                f"has {len(secret)} bytes, not {SECRET_BYTES}; it is damaged, and with it what this client "
                "needs to go on with the run. Put an undamaged copy back, or begin a new run without this client",
                source=path,
            )
        return cls(secret)

    def derived(self, context: str) -> PrivateRandomness:
        """Return another source that depends on this one's secret and on the context, and is as private."""
        return PrivateRandomness(self._key("derived", context))

    def generator(self, *context: str | int | bytes) -> np.random.Generator:
        """Return a numpy generator for one purpose, for mini-batches: its numbers are never shown."""
        key = self._key(*context)
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))

    def seed(self, *context: str | int | bytes) -> int:
        """Return 64 bits that may be shown: nothing else follows from them."""
        return int.from_bytes(self._key(*context)[:8], "little")

    def discrete_gaussian(self, count: int, scale: float, *context: str | int | bytes) -> NDArray[np.int64]:
        """Return independent integers from the discrete Gaussian distribution of a scale, shape (count,).

        Nobody can tell them from true ones without the secret, whatever numbers of theirs are known.
        """
        return discrete_gaussian(self._key(*context, scale.hex()), scale, count)

    def _key(self, *context: str | int | bytes) -> bytes:
        """Return 32 bytes that depend on the secret and on every part of the context, and where each ends."""
        mac = hmac.new(self.secret, digestmod=hashlib.sha256)
        for part in context:
            encoded = part if isinstance(part, bytes) else str(part).encode()
            mac.update(f"{type(part).__name__}:{len(encoded)}:".encode() + encoded)
        return mac.digest()
