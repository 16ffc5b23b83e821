"""Fenchel's own implementation for owners of the private key, by arithmetic modulo p² and q² (Chinese remainders).

A Paillier ciphertext of m is (1 + nm) r^n mod n², and the blinding factor r^n takes nearly all of its time. Modulo p²,
the n-th residues form a cyclic group of p-1 elements, in which r^n for a random unit r is uniformly distributed. It is
therefore drawn as h^e, for a generator h of the group and a random exponent e in 0 .. p-2, from a table of powers of h
(fixed-base windows; Handbook of Applied Cryptography, 14.6.3). As exponents have full length, security needs no
assumption beyond Paillier's own. Without the factors of p-1, no generator can be found. Then the factor is u^p for a
random unit u modulo p, which has the same distribution: x -> x^p is a bijection from the units modulo p to the n-th
residues modulo p².

A blinding factor that is used twice reveals the difference of two plaintexts. Each is therefore made on request, used
once, and never stored.

With L(x) = (x-1)/p, decryption is m = L(c^(p-1) mod p²) L((1+n)^(p-1) mod p²)^-1 modulo p, the same modulo q, and m
from both (Paillier 1999, section 7).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import gmpy2
from gmpy2 import mpz

from fenchel.common.crypto.public_key import Backend, PublicKey
from fenchel.common.crypto.residues.choice import residues
from fenchel.common.crypto.residues.interface import Residues
from fenchel.common.slots import joint
from fenchel.keys.paillier.gmp import GmpArithmetic
from fenchel.keys.paillier.ifma import IfmaArithmetic
from fenchel.keys.paillier.key import PrivateKey

_FEW = 32  # fewer numbers are computed together with those of other clients of the process, in fuller groups
_SHARE = 8  # smallest number of values per thread, two groups of the four that the backend ifma computes at once


class CrtOwner:
    """Encryption and decryption on one backend, with all processors that this process may use.

    A process should make one object for a key, because its tables are large.

    Parameters
    ----------
    key
        Private key.
    backend
        Name of the backend.
    arithmetic
        Powers modulo p² and q² for this key, computed by the backend.
    """

    def __init__(self, key: PrivateKey, backend: Backend, arithmetic: GmpArithmetic | IfmaArithmetic) -> None:
        self.key = key
        self.public = PublicKey(key.public.n, backend)
        self.arithmetic = arithmetic

    def blinding_factors(self, count: int) -> list[mpz]:
        """Return ``count`` fresh blinding factors, numbers modulo n²."""
        halves = zip(*self.arithmetic.random_residues(count), strict=True)
        return [self.key.ciphertext(modulo_p, modulo_q) for modulo_p, modulo_q in halves]

    def encrypt(self, plaintexts: Sequence[mpz]) -> Residues:
        """Return the ciphertexts of integers."""
        return residues(self.public.backend).of(self.public, _joint(self._encrypted, plaintexts))

    def decrypt(self, ciphertexts: Residues) -> list[mpz]:
        """Return the plaintexts, modulo ``n``."""
        return _joint(self._decrypted, list(ciphertexts))

    def _encrypted(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        return _shared(self._encrypted_share, plaintexts)

    def _decrypted(self, numbers: Sequence[mpz]) -> list[mpz]:
        return _shared(self._decrypted_share, numbers)

    def _encrypted_share(self, plaintexts: Sequence[mpz]) -> list[mpz]:
        n, factors = self.public.modulus, self.blinding_factors(len(plaintexts))
        # With r = low + n high, (1 + nm) r = low + n (high + m low) modulo n².
        parts = zip(plaintexts, (gmpy2.f_divmod(factor, n) for factor in factors), strict=True)
        return [low + n * ((high + m * low) % n) for m, (high, low) in parts]

    def _decrypted_share(self, numbers: Sequence[mpz]) -> list[mpz]:
        powers = zip((self.key.modulo_p, self.key.modulo_q), self.arithmetic.powers(list(numbers)), strict=True)
        halves = zip(*(modulo.plaintexts(those) for modulo, those in powers), strict=True)
        return [self.key.plaintext(modulo_p, modulo_q) for modulo_p, modulo_q in halves]


def _joint(work: Callable[[Sequence[mpz]], list[mpz]], numbers: Sequence[mpz]) -> list[mpz]:
    """Return the results of ``work`` for numbers; few numbers are computed together with those of other clients."""
    return joint(work, numbers) if len(numbers) < _FEW else work(numbers)


def _shared(work: Callable[[Sequence[mpz]], list[mpz]], numbers: Sequence[mpz]) -> list[mpz]:
    """Return the results of ``work`` for numbers, which are divided among threads."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(processors, len(numbers) // _SHARE)
    if threads < 2:
        return work(numbers)
    share = -(-len(numbers) // threads)
    share += -share % _SHARE
    parts = [numbers[start : start + share] for start in range(0, len(numbers), share)]
    with ThreadPoolExecutor(len(parts), thread_name_prefix="paillier") as executor:
        return [number for part in executor.map(work, parts) for number in part]
