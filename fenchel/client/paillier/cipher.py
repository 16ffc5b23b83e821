"""Encrypting and decrypting vectors with the private key.

With c = (1 + nm) r^n mod n² and L(x) = (x-1)/p, decryption is m = L(c^(p-1) mod p²) L((1+n)^(p-1) mod p²)^-1
modulo p, the same modulo q, and m from both (Paillier 1999, section 7).
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from fenchel.client.paillier.blinding import BlindingFactors
from fenchel.client.paillier.key import PrivateKey
from fenchel.common.arrays import Vector
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError


class Paillier:
    """Encrypts and decrypts for one client; for one thread at a time.

    blinding_factors: of the same key; shared by all clients of a process.
    """

    def __init__(self, key: PrivateKey, blinding_factors: BlindingFactors) -> None:
        if blinding_factors.key.public != key.public:
            raise EncryptionError("the blinding factors were made for another key than the one to encrypt with")
        self.key = key
        self.meter = CipherMeter()  # counts and times, for reports. The caller may read it and replace it at any time.
        self._blinding_factors = blinding_factors

    def encrypt(self, values: Vector, layout: Layout) -> CipherVector:
        """Encrypt a vector.

        values: shape (count,), float64; rounded to multiples of ``2^-layout.fraction_bits``.
        """
        layout.check_fits(self.key.public)
        started = time.perf_counter_ns()
        plaintexts = layout.pack(values)
        blinding_factors = self._blinding_factors.take(len(plaintexts))
        n, n_squared = self.key.public.modulus, self.key.public.n_squared
        ciphertexts = [(1 + n * m) * r % n_squared for m, r in zip(plaintexts, blinding_factors, strict=True)]
        self.meter.encryptions += len(ciphertexts)
        self.meter.encryption_ns += time.perf_counter_ns() - started
        return CipherVector(self.key.public, layout, len(values), 1, ciphertexts)

    def decrypt(self, vector: CipherVector) -> NDArray[np.float64]:
        """Return the values of a vector, shape (count,), float64."""
        public = self.key.public
        if vector.key != public:
            raise EncryptionError(
                f"the vector is encrypted with the key {vector.key.fingerprint}, and this client has the key "
                f"{public.fingerprint}; all clients of a federation need the same file of secrets"
            )
        started = time.perf_counter_ns()
        residues = zip(
            self.key.modulo_p.residues(vector.ciphertexts), self.key.modulo_q.residues(vector.ciphertexts), strict=True
        )
        plaintexts = [self.key.plaintext(m_p, m_q) for m_p, m_q in residues]
        values = vector.layout.unpack(plaintexts, vector.count, public.n, vector.additions)
        self.meter.decryptions += len(plaintexts)
        self.meter.decryption_ns += time.perf_counter_ns() - started
        return values
