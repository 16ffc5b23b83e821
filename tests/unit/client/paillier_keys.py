"""Keys that are made once for all tests: short ones, which take no time, unless a test asks for more bits."""

from __future__ import annotations

from functools import cache

from fenchel.keys.paillier.key import PrivateKey, generate


def key_of(bits: int = 256) -> PrivateKey:
    return _made(bits)


@cache
def _made(bits: int) -> PrivateKey:
    return generate(bits, for_tests=True)
