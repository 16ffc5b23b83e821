"""phe decrypts what Fenchel writes, and Fenchel what phe writes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import key_owner
from tests.unit.client.paillier_keys import key_of

phe = pytest.importorskip("phe.paillier", reason="phe is not installed")

ONE_A_CIPHERTEXT = Layout.fit(256, fraction_bits=20, largest=1000.0, additions=8, slots=1)


def keys_of_phe(key: PrivateKey) -> tuple[Any, Any]:
    public = phe.PaillierPublicKey(key.public.n)
    return public, phe.PaillierPrivateKey(public, key.p, key.q)


@cache
def paillier(bits: int = 256) -> Paillier:
    return Paillier(key_owner(key_of(bits), "gmp"))


numbers = st.floats(-1000, 1000).map(lambda x: round(x * 2**20) / 2**20)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_phe_decrypts_what_we_encrypt(given_values: list[float]) -> None:
    """phe's exponent counts hexadecimal digits: 20 bits after the point are five."""
    public, private = keys_of_phe(key_of())
    vector = paillier().encrypt(np.array(given_values), ONE_A_CIPHERTEXT)
    theirs = [phe.EncryptedNumber(public, int(c), exponent=-5) for c in vector.ciphertexts]
    assert [private.decrypt(each) for each in theirs] == given_values
    assert private.decrypt(sum(theirs[1:], theirs[0])) == sum(given_values)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_we_decrypt_what_phe_encrypts(given_values: list[float]) -> None:
    public, _ = keys_of_phe(key_of())
    theirs = [public.encrypt(x, precision=2.0**-20) for x in given_values]
    assert all(each.exponent == -5 for each in theirs)
    ciphertexts = [mpz(each.ciphertext()) for each in theirs]
    vector = CipherVector(
        key_of().public, ONE_A_CIPHERTEXT, len(theirs), 1, GmpResidues.of(key_of().public, ciphertexts)
    )
    assert paillier().decrypt(vector).tolist() == given_values


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_packed_plaintexts_are_the_same_on_both_sides(seed: int) -> None:
    layout = Layout.fit(256, fraction_bits=20, largest=1000.0, additions=8)
    x = np.rint(np.random.default_rng(seed).uniform(-999, 999, 17) * 2**20) / 2**20
    public, private = keys_of_phe(key_of())
    vector = paillier().encrypt(x, layout)
    opened = [private.raw_decrypt(int(c)) for c in vector.ciphertexts]
    np.testing.assert_array_equal(layout.unpack([mpz(m) for m in opened], 17, public.n), x)
    theirs = [mpz(public.raw_encrypt(m)) for m in opened]
    again = CipherVector(key_of().public, layout, 17, 1, GmpResidues.of(key_of().public, theirs))
    np.testing.assert_array_equal(paillier().decrypt(vector + again), 2 * x)


def test_at_2048_bits() -> None:
    public, private = keys_of_phe(key_of(2048))
    layout = Layout.fit(2048, fraction_bits=20, largest=1000.0, additions=8, slots=1)
    vector = paillier(2048).encrypt(np.array([-1.5, 0.25]), layout)
    total = phe.EncryptedNumber(public, int(next(iter(vector.ciphertexts))), exponent=-5) + 3.0
    assert private.decrypt(total) == 1.5
