"""Fenchel's own implementation for owners of the private key: all modulo p² and modulo q², put together at the end.

A Paillier ciphertext of m is (1 + nm) r^n mod n², and the blinding factor r^n is all of its cost. Modulo p², the n-th
residues form a cyclic group of p-1 elements, and r^n for a random unit r is a uniformly random element of it: h^e for a
generator h of the group and a full-length random exponent e in 0 .. p-2, from a table of powers of h (fixed-base
windows; Handbook of Applied Cryptography, 14.6.3). No short exponents, so no assumption beyond Paillier's own. Where
the factors of p-1 are not known, no generator can be found: there it is u^p for a random unit u modulo p, of the same
distribution, as x -> x^p maps the units modulo p one to one onto the n-th residues modulo p².

A blinding factor that is used twice reveals the difference of two plaintexts: each is made when it is asked for,
handed out once, and never kept.

With L(x) = (x-1)/p, decryption is m = L(c^(p-1) mod p²) L((1+n)^(p-1) mod p²)^-1 modulo p, the same modulo q, and m
from both (Paillier 1999, section 7).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from gmpy2 import mpz

from fenchel.client.paillier.key import PrimePower, PrivateKey
from fenchel.common.crypto.public_key import Backend, PublicKey
from fenchel.common.crypto.residues.choice import residues
from fenchel.common.crypto.residues.interface import Residues


class PrimeArithmetic(Protocol):
    """Powers modulo p², for any number of threads."""

    @property
    def table_bytes(self) -> int:
        """Memory of the table's numbers, without Python's own; 0: there is no table."""

    def powers(self, numbers: list[mpz]) -> list[mpz]:
        """Return the powers x^(p-1) of numbers in ``0 .. n^2 - 1``, in a time that does not depend on p."""

    def random_residues(self, count: int) -> list[mpz]:
        """Return fresh n-th residues, uniformly random."""


class CrtOwner:
    """Encrypts by blinding factors of each prime, and decrypts, on one backend.

    Make one for a key in a process: the tables are large.

    Parameters
    ----------
    key
        The private key.
    backend
        The name of the backend.
    arithmetic
        Makes its arithmetic for each of the primes.
    """

    def __init__(self, key: PrivateKey, backend: Backend, arithmetic: Callable[[PrimePower], PrimeArithmetic]) -> None:
        self.key = key
        self.public = PublicKey(key.public.n, backend)
        self._p, self._q = arithmetic(key.modulo_p), arithmetic(key.modulo_q)
        self._parallel = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else os.cpu_count() != 1

    @property
    def table_bytes(self) -> int:
        """Memory of the tables."""
        return self._p.table_bytes + self._q.table_bytes

    def blinding_factors(self, count: int) -> list[mpz]:
        """Return so many fresh blinding factors, numbers modulo n²."""
        halves = self._by_both(lambda arithmetic: arithmetic.random_residues(count))
        return [self.key.ciphertext(modulo_p, modulo_q) for modulo_p, modulo_q in zip(*halves, strict=True)]

    def encrypt(self, plaintexts: Sequence[mpz]) -> Residues:
        """Encrypt integers."""
        n, n_squared = self.public.modulus, self.public.n_squared
        factors = self.blinding_factors(len(plaintexts))
        numbers = [(1 + n * m) * r % n_squared for m, r in zip(plaintexts, factors, strict=True)]
        return residues(self.public.backend).of(self.public, numbers)

    def decrypt(self, ciphertexts: Residues) -> list[mpz]:
        """Return the plaintexts, modulo ``n``."""
        numbers = list(ciphertexts)
        powers_p, powers_q = self._by_both(lambda arithmetic: arithmetic.powers(numbers))
        halves = self.key.modulo_p.plaintexts(powers_p), self.key.modulo_q.plaintexts(powers_q)
        return [self.key.plaintext(modulo_p, modulo_q) for modulo_p, modulo_q in zip(*halves, strict=True)]

    def _by_both(self, work: Callable[[PrimeArithmetic], list[mpz]]) -> tuple[list[mpz], list[mpz]]:
        """Return what both primes give, the second in a thread of its own where there is a processor for it."""
        if not self._parallel:
            return work(self._p), work(self._q)
        with ThreadPoolExecutor(1, thread_name_prefix="paillier") as executor:
            second = executor.submit(work, self._q)
            return work(self._p), second.result()
