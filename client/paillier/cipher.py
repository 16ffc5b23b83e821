"""Encrypting and decrypting vectors with the private key.

With c = (1 + nm) r^n mod n² and L(x) = (x-1)/p, decryption is m = L(c^(p-1) mod p²) L((1+n)^(p-1) mod p²)^-1
modulo p, the same modulo q, and m from both (Paillier 1999, section 7).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import gmpy2
import numpy as np
from numpy.typing import NDArray

from fenchel.client.paillier.blinding import BlindingFactors
from fenchel.client.paillier.key import PrivateKey
from fenchel.common.arrays import Vector
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, SettingsError


class Paillier:
    """Encrypts and decrypts for one client; for one thread at a time.

    obfuscators: of the same key; shared by all clients of a process.
    threads: how many threads decrypt. They work in parallel, because the arithmetic releases the GIL; results are the
        same for any number.
    """

    def __init__(self, key: PrivateKey, blinding_factors: BlindingFactors, *, threads: int = 1) -> None:
        if threads < 1:
            raise SettingsError(f"decryption with {threads} threads: expected 1 or more")
        if blinding_factors.key.public != key.public:
            raise EncryptionError("the obfuscators were made for another key than the one to encrypt with")
        self.key = key
        self.meter = CipherMeter()  # counts and times, for reports. The caller may read it and replace it at any time.
        self._obfuscators = blinding_factors
        self._threads = threads

    def encrypt(self, values: Vector, layout: Layout) -> CipherVector:
        """Encrypt a vector.

        values: shape (count,), float64; rounded to multiples of ``2^-layout.fraction_bits``.
        """
        layout.check_fits(self.key.public)
        started = time.perf_counter_ns()
        plaintexts = layout.pack(values)
        with self._obfuscators.paused():
            blinding_factors = self._obfuscators.take(len(plaintexts))
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
        with self._obfuscators.paused():
            plaintexts = self._plaintexts(vector.ciphertexts)
        values = vector.layout.unpack(plaintexts, vector.count, public.n, vector.additions)
        self.meter.decryptions += len(plaintexts)
        self.meter.decryption_ns += time.perf_counter_ns() - started
        return values

    def _plaintexts(self, ciphertexts: list[gmpy2.mpz]) -> list[gmpy2.mpz]:
        key = self.key
        if self._threads == 1:
            residues_p, residues_q = key.modulo_p.residues(ciphertexts), key.modulo_q.residues(ciphertexts)
        else:
            size = max(1, -(-len(ciphertexts) // self._threads))
            parts = [ciphertexts[start : start + size] for start in range(0, len(ciphertexts), size)]
            with ThreadPoolExecutor(self._threads) as executor:
                parts_p = executor.map(key.modulo_p.residues, parts)
                parts_q = executor.map(key.modulo_q.residues, parts)
                residues_p = [residue for part in parts_p for residue in part]
                residues_q = [residue for part in parts_q for residue in part]
        return [key.plaintext(m_p, m_q) for m_p, m_q in zip(residues_p, residues_q, strict=True)]
