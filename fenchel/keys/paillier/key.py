"""Secret key, which all clients of a federation share and the server never has.

The notation is that of Paillier (1999): n = pq, ciphertexts modulo n². Fenchel makes its own primes with known factors
of p-1 and q-1. The factors give a generator of the n-th residues modulo p², whose table of powers makes encryption ten
times faster (:mod:`fenchel.keys.paillier.crt`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import gmpy2

from fenchel.common.crypto.public_key import (
    DEFAULT_BITS,
    FORMAT_VERSION,
    LARGEST_BITS,
    PRIVATE_KIND,
    SAFE_BITS,
    SMALLEST_BITS,
    PublicKey,
    check_fields,
)
from fenchel.common.errors import CredentialError, EncryptionError, SettingsError

Factors: TypeAlias = tuple[int, ...]
"""Distinct primes that divide a number."""

_PRIMALITY_ROUNDS = 40  # number of Miller-Rabin rounds: a composite number passes with probability below 4^-40
_FIELDS = frozenset({"kind", "version", "n", "p", "q", "p_factors", "q_factors"})


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """Primes p and q of a key, with gcd(pq, (p-1)(q-1)) = 1, and the distinct primes that divide p-1 and q-1.

    The primes that divide p-1 and q-1 are unknown for a key from another program, so their tuples are empty. Encryption
    with such a key takes longer.
    """

    p: int
    q: int
    p_factors: Factors = ()
    q_factors: Factors = ()

    def __post_init__(self) -> None:
        for name, prime in (("p", self.p), ("q", self.q)):
            if prime < 5 or not gmpy2.is_prime(prime, _PRIMALITY_ROUNDS):
                raise CredentialError(f"private key: {name} is not a prime, so the key is damaged; copy the file again")
        if self.p == self.q or gmpy2.gcd(self.p * self.q, (self.p - 1) * (self.q - 1)) != 1:
            raise CredentialError("private key: p and q differ in length, so the key is damaged; copy the file again")
        _check_factors("p", self.p - 1, self.p_factors)
        _check_factors("q", self.q - 1, self.q_factors)

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.bits} bits, fingerprint {self.public.fingerprint})"

    @cached_property
    def public(self) -> PublicKey:
        """Public key of this private key."""
        return PublicKey(self.p * self.q)

    @cached_property
    def modulo_p(self) -> PrimePower:
        """Arithmetic modulo p²."""
        return PrimePower.of(self.p, self.q, self.p_factors)

    @cached_property
    def modulo_q(self) -> PrimePower:
        """Arithmetic modulo q²."""
        return PrimePower.of(self.q, self.p, self.q_factors)

    @cached_property
    def _p_inverse(self) -> gmpy2.mpz:
        return gmpy2.invert(self.p, self.q)

    @cached_property
    def _p_squared_inverse(self) -> gmpy2.mpz:
        return gmpy2.invert(self.modulo_p.square, self.modulo_q.square)

    def plaintext(self, modulo_p: gmpy2.mpz, modulo_q: gmpy2.mpz) -> gmpy2.mpz:
        """Return the number in 0 .. n-1 that has these remainders modulo p and q (Chinese remainders)."""
        return modulo_p + self.modulo_p.prime * ((modulo_q - modulo_p) * self._p_inverse % self.modulo_q.prime)

    def ciphertext(self, modulo_p_squared: gmpy2.mpz, modulo_q_squared: gmpy2.mpz) -> gmpy2.mpz:
        """Return the number in 0 .. n²-1 that has these remainders modulo p² and q²."""
        apart = (modulo_q_squared - modulo_p_squared) * self._p_squared_inverse % self.modulo_q.square
        return modulo_p_squared + self.modulo_p.square * apart

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the key for its file. Numbers are texts of hexadecimal digits."""
        return {
            "kind": PRIVATE_KIND,
            "version": FORMAT_VERSION,
            "n": f"{self.public.n:x}",
            "p": f"{self.p:x}",
            "q": f"{self.q:x}",
            "p_factors": [f"{factor:x}" for factor in self.p_factors],
            "q_factors": [f"{factor:x}" for factor in self.q_factors],
        }

    @classmethod
    def from_fields(cls, fields: object) -> PrivateKey:
        """Read a key from the fields of :meth:`to_fields`.

        Raises
        ------
        CredentialError
            If a field is missing or invalid, or the fields do not form a key.
        """
        fields = check_fields(fields, PRIVATE_KIND, _FIELDS)
        key = cls(
            _number(fields["p"], "p"),
            _number(fields["q"], "q"),
            _numbers(fields["p_factors"], "p_factors"),
            _numbers(fields["q_factors"], "q_factors"),
        )
        if key.public.n != _number(fields["n"], "n"):
            raise CredentialError(
                "private key: n is not the product of p and q, so the key is damaged; copy the file again"
            )
        return key


@dataclass(frozen=True, repr=False)
class PrimePower:
    """Constants of arithmetic modulo the square of one prime p of the key.

    Attributes
    ----------
    prime, square, order
        p, p² and p-1.
    weight
        L((1+n)^(p-1) mod p²)^-1 mod p with L(x) = (x-1)/p. It converts the logarithm of a power c^(p-1) to the
        plaintext modulo p (Paillier 1999, section 7).
    factors
        Distinct primes that divide p-1; empty if they are unknown.
    """

    prime: gmpy2.mpz
    square: gmpy2.mpz
    order: gmpy2.mpz
    weight: gmpy2.mpz
    factors: Factors

    @classmethod
    def of(cls, prime: int, other: int, factors: Factors) -> PrimePower:
        """Compute the constants for a prime of a key; ``other`` is the second prime."""
        # (1+n)^(p-1) = 1 + n(p-1) modulo p², and L maps this power to q(p-1) = -q modulo p.
        weight = gmpy2.invert(-other, prime)
        return cls(gmpy2.mpz(prime), gmpy2.mpz(prime) ** 2, gmpy2.mpz(prime - 1), weight, factors)

    def __repr__(self) -> str:
        return f"PrimePower({self.prime.bit_length()} bits)"

    def plaintexts(self, powers: list[gmpy2.mpz]) -> list[gmpy2.mpz]:
        """Return the plaintexts modulo p of ciphertexts, from their powers c^(p-1) modulo p².

        Raise ``EncryptionError`` if a ciphertext is a multiple of p.
        """
        prime, weight = self.prime, self.weight
        # The power is 0 for a multiple of p, and the result would reveal the inverse of the other prime.
        if not all(powers):
            raise no_ciphertext(len(powers))
        return [(power - 1) // prime * weight % prime for power in powers]

    def generator(self) -> gmpy2.mpz:
        """Return a random generator of the n-th residues modulo p², a cyclic group of p-1 elements.

        The result is g^p for a generator g modulo p. The map x -> x^p is a bijection from the units modulo p to the
        n-th residues modulo p², because p divides n and the second prime has no factor in common with p-1.
        """
        while True:
            candidate = gmpy2.mpz(2 + secrets.randbelow(int(self.prime) - 3))
            if all(gmpy2.powmod(candidate, self.order // f, self.prime) != 1 for f in self.factors):
                return gmpy2.powmod(candidate, self.prime, self.square)


def no_ciphertext(count: int) -> EncryptionError:
    """Make the error for ``count`` numbers to decrypt, one of which shares a factor with n."""
    return EncryptionError(
        f"one of {count} numbers to decrypt shares a factor with n, which no ciphertext does; nothing is decrypted. "
        "Its sender does not follow the protocol"
    )


def generate(bits: int = DEFAULT_BITS, *, for_tests: bool = False) -> PrivateKey:
    """Make a key, which takes about a second at 3072 bits.

    Parameters
    ----------
    bits
        Length of n in bits, even; 3072 is as hard to break as a symmetric key of 128 bits, 2048 as one of 112.
    for_tests
        True allows keys that are too short to be safe.

    Raises
    ------
    SettingsError
        If the key would be too short, or ``bits`` is odd.
    """
    check_length(bits, for_tests=for_tests)
    while True:
        p, p_factors = _prime(bits // 2)
        q, q_factors = _prime(bits // 2)
        # A small |p - q| would allow n to be factored by a search around its square root (FIPS 186-5, A.1.3).
        if abs(p - q).bit_length() > bits // 2 - min(100, bits // 8):
            return PrivateKey(p, q, p_factors, q_factors)


def check_length(bits: int, *, for_tests: bool) -> None:
    """Raise ``SettingsError`` if a key length is too short or odd."""
    smallest = SMALLEST_BITS if for_tests else SAFE_BITS
    if bits < smallest:
        raise SettingsError(
            f"a Paillier key of {bits} bits is too short; use at least {smallest}, and {DEFAULT_BITS} for data "
            "that must stay secret for years"
        )
    if bits % 2:
        raise SettingsError(f"a Paillier key cannot have {bits} bits; use an even number")


def _prime(bits: int) -> tuple[int, Factors]:
    """Return a prime p = 2ks+1 of exactly ``bits`` bits, k and s odd primes, and the factors of p-1.

    So p = 3 modulo 4, and p-1 has a factor s almost as long as p. The two highest bits are set, so the
    product of two such primes has exactly twice as many bits.
    """
    short = max(16, bits // 12)  # number of bits of k: 128 for a key of 3072 bits, which leaves enough candidates
    while True:
        s = _random_prime(3 << (bits - short - 3), 1 << (bits - short - 1))
        low, high = (3 << (bits - 2)) // (2 * s) + 1, (1 << bits) // (2 * s)
        for _ in range(200 * bits):
            k = low + secrets.randbelow(high - low) | 1
            p = 2 * k * s + 1
            if (
                k != s
                and p.bit_length() == bits
                and gmpy2.is_prime(k, _PRIMALITY_ROUNDS)
                and gmpy2.is_prime(p, _PRIMALITY_ROUNDS)
            ):
                return p, (2, k, s)


def _random_prime(low: int, high: int) -> int:
    while True:
        candidate = low + secrets.randbelow(high - low) | 1
        if gmpy2.is_prime(candidate, _PRIMALITY_ROUNDS):
            return candidate


def _check_factors(name: str, order: int, factors: Factors) -> None:
    if not factors:
        return
    rest = order
    for factor in factors:
        if factor < 2 or not gmpy2.is_prime(factor, _PRIMALITY_ROUNDS) or rest % factor:
            raise CredentialError(
                f"private key: {name}_factors are not the primes that divide {name}-1; copy the file again"
            )
        while rest % factor == 0:
            rest //= factor
    if rest != 1:
        raise CredentialError(f"private key: {name}_factors lack primes that divide {name}-1; copy the file again")


def _number(text: object, name: str) -> int:
    digits = text if isinstance(text, str) else ""
    if not 1 <= len(digits) <= LARGEST_BITS // 4 or set(digits) - set("0123456789abcdef"):
        raise CredentialError(
            f"private key: {name} is not a number in lower-case hexadecimal digits; copy the file again"
        )
    return int(digits, 16)


def _numbers(texts: object, name: str) -> Factors:
    if not isinstance(texts, list) or len(texts) > 1000:
        raise CredentialError(f"private key: {name} is not a list of hexadecimal numbers; copy the file again")
    return tuple(_number(text, name) for text in texts)
