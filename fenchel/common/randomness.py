"""Reproducible random numbers, keyed by their purpose.

Each draw comes from a counter-based generator (Philox) whose key is a hash of seed, client, round and purpose. A
restarted process, another order of clients or another number of threads therefore draws the same numbers. Random
numbers for privacy are never drawn here.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return the generator for one purpose.

    Parameters
    ----------
    seed
        Seed of the run, ``settings.seed``.
    *key
        Purpose of the numbers, from general to particular: ``generator(seed, "client-3", round, "batches")``.

    Returns
    -------
    np.random.Generator
        Philox with a 128-bit key; the same arguments give the same stream on every machine.
    """
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in key)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def public_seed(seed: int, *key: str | int) -> int:
    """Return a 64-bit seed for one purpose, which server and clients derive equally from the run's seed."""
    return int(generator(seed, *key).integers(1 << 64, dtype=np.uint64))
