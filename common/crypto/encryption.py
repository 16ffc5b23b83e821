"""Encrypting with the public key alone.

For a party that must not have the private key. Clients have it, and encrypt several times faster with it
(package ``fenchel.client.paillier``); both kinds of ciphertexts can be added.
"""

from __future__ import annotations

import secrets
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError


class PublicEncryption:
    """Encrypts vectors by the variant of Damgård, Jurik and Nielsen (2010, section 4.2).

    Paillier hides a plaintext by ``r^n`` with a random unit ``r``. Here ``r`` is a random power of one
    element ``h = -x^2``, so that ``h^n`` is computed once and its exponent has half the length of ``n``. The
    result is as hard to open as Paillier's, if both primes are 3 modulo 4, as Fenchel makes them.
    """

    def __init__(self, key: PublicKey) -> None:
        if key.n % 4 != 1:
            raise EncryptionError(
                f"the key {key.fingerprint} was not made by Fenchel: its primes are not 3 modulo 4, which encrypting "
                "with the public key alone relies on; encrypt with the private key, or make a key with 'fenchel keys'"
            )
        self.key = key
        x = _random_unit(key)
        h = -x * x % key.modulus
        self._base = gmpy2.powmod(h, key.modulus, key.n_squared)
        self._exponent_bits = (key.bits + 1) // 2

    def encrypt(self, values: NDArray[np.floating[Any]], layout: Layout) -> CipherVector:
        """Return an encrypted vector.

        values: shape (count,), float64.
        """
        layout.check_fits(self.key)
        n, modulus = self.key.modulus, self.key.n_squared
        ciphertexts = [(1 + plaintext * n) * self._obfuscator() % modulus for plaintext in layout.pack(values)]
        return CipherVector(self.key, layout, len(values), 1, ciphertexts)

    def _obfuscator(self) -> mpz:
        """Return a fresh random encryption of zero."""
        return gmpy2.powmod(self._base, secrets.randbits(self._exponent_bits), self.key.n_squared)


def _random_unit(key: PublicKey) -> mpz:
    """Return a random number that is coprime to ``n``."""
    while True:
        unit = mpz(secrets.randbelow(key.n))
        if gmpy2.gcd(unit, key.modulus) == 1:
            return unit
