"""Paillier as the textbook has it, number by number in plain Python: what the fast layer is held against."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import gmpy2
import numpy as np

from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector


def blum_prime(bits: int, seed: int) -> int:
    """Return a prime of this length with its two highest bits set, 3 modulo 4."""
    prime = gmpy2.next_prime(3 << (bits - 2) | random.Random(seed).getrandbits(bits - 3))
    while prime % 4 != 3:
        prime = gmpy2.next_prime(prime)
    return int(prime)


P, Q = blum_prime(128, 1), blum_prime(128, 2)
KEY = PublicKey(P * Q)
OTHER_KEY = PublicKey(blum_prime(128, 3) * blum_prime(128, 4))


def encrypted(plaintext: int, seed: int = 0) -> gmpy2.mpz:
    """Return (1 + n)^m r^n modulo n^2."""
    unit = random.Random(seed).randrange(1, KEY.n)
    return gmpy2.mpz(pow(1 + KEY.n, plaintext % KEY.n, KEY.n**2) * pow(unit, KEY.n, KEY.n**2) % KEY.n**2)


def decrypted(ciphertext: int) -> int:
    """Return the plaintext in 0 .. n-1, by Carmichael's function."""
    order = math.lcm(P - 1, Q - 1)
    power = (pow(int(ciphertext), order, KEY.n**2) - 1) // KEY.n
    return power * pow(order, -1, KEY.n) % KEY.n


def vector(values: Sequence[float], layout: Layout, seed: int = 0) -> CipherVector:
    """Encrypt a vector."""
    plaintexts = packed(multiples(values, layout), layout)
    ciphertexts = [encrypted(plaintext, seed + at) for at, plaintext in enumerate(plaintexts)]
    return CipherVector(KEY, layout, len(values), 1, GmpResidues.of(KEY, ciphertexts))


def values_of(encrypted_vector: CipherVector) -> list[float]:
    """Decrypt a vector, and look at every slot."""
    layout = encrypted_vector.layout
    plaintexts = [decrypted(ciphertext) for ciphertext in encrypted_vector.ciphertexts]
    whole = [value for plaintext in plaintexts for value in slots(plaintext, layout)]
    assert not any(whole[encrypted_vector.count :])
    return [float(Fraction(value, 1 << layout.fraction_bits)) for value in whole[: encrypted_vector.count]]


def multiples(values: Sequence[float] | np.ndarray, layout: Layout) -> list[int]:
    """Return the values as multiples of 2^-f, to nearest, ties to even."""
    return [round(Fraction(float(value)) * (1 << layout.fraction_bits)) for value in values]


def packed(numbers: Sequence[int], layout: Layout) -> list[int]:
    """Return sum_i v_i 2^(w i) for each run of ``slots`` numbers."""
    return [
        sum(number << (layout.slot_bits * place) for place, number in enumerate(numbers[at : at + layout.slots]))
        for at in range(0, len(numbers), layout.slots)
    ]


def slots(plaintext: int, layout: Layout) -> list[int]:
    """Return the signed numbers in a plaintext, lowest first, each with what it borrowed paid back."""
    rest = plaintext if plaintext <= KEY.n // 2 else plaintext - KEY.n
    found = []
    for _ in range(layout.slots):
        low = rest % (1 << layout.slot_bits)
        number = low if low < 1 << (layout.slot_bits - 1) else low - (1 << layout.slot_bits)
        found.append(number)
        rest = (rest - number) >> layout.slot_bits
    assert rest == 0
    return found
