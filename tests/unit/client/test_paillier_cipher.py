"""What is encrypted comes back, sums included, and two encryptions never look alike."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import Backend, PublicKey
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import generate
from fenchel.keys.paillier.owner import KeyOwner, key_owner
from tests.ifma_kernel import in_use
from tests.messages import raises
from tests.unit.client.paillier_keys import key_of


@cache
def owner(bits: int = 256, backend: Backend = "gmp") -> KeyOwner:
    return key_owner(key_of(bits), backend)


@cache
def paillier(bits: int = 256, backend: Backend = "gmp") -> Paillier:
    return Paillier(owner(bits, backend))


of_both = pytest.mark.parametrize("backend", ["gmp", "ifma"])


@pytest.fixture(scope="module", autouse=True)
def kernel() -> Iterator[None]:
    with in_use("emulated"):
        yield


def layout_of(bits: int = 256, additions: int = 1000) -> Layout:
    return Layout.fit(bits, fraction_bits=20, largest=1000.0, additions=additions)


def values(count: int, seed: int = 0) -> NDArray[np.float64]:
    """Return multiples of 2^-20, which the layout holds exactly."""
    return np.rint(np.random.default_rng(seed).uniform(-999, 999, count) * 2**20) / 2**20


@of_both
@given(given_values=st.lists(st.floats(-1000, 1000), max_size=40))
def test_values_come_back_rounded_to_the_grid(backend: Backend, given_values: list[float]) -> None:
    x, ours = np.array(given_values, np.float64), paillier(backend=backend)
    again = ours.decrypt(ours.encrypt(x, layout_of()))
    np.testing.assert_array_equal(again, np.rint(x * 2**20) / 2**20)


@of_both
@given(count=st.integers(1, 30), seed=st.integers(0, 2**32), terms=st.integers(1, 6))
def test_sums_are_exact(backend: Backend, count: int, seed: int, terms: int) -> None:
    ours, parts = paillier(backend=backend), [values(count, seed + each) for each in range(terms)]
    total = CipherVector.zeros(ours.public, layout_of(), count)
    for part in parts:
        total = total + ours.encrypt(part, layout_of())
    np.testing.assert_array_equal(ours.decrypt(total), np.sum(parts, axis=0))


@of_both
@given(numerator=st.integers(-50, 50), shift=st.integers(0, 8), seed=st.integers(0, 2**32))
def test_multiples_are_exact(backend: Backend, numerator: int, shift: int, seed: int) -> None:
    x, ours = values(7, seed), paillier(backend=backend)
    scaled = ours.encrypt(x, layout_of(additions=10**6)).times(numerator, shift)
    np.testing.assert_array_equal(ours.decrypt(scaled), x * numerator / 2**shift)


@of_both
def test_a_key_as_used_in_earnest(backend: Backend) -> None:
    x, ours = values(200), paillier(2048, backend)
    layout = layout_of(2048)
    total = ours.encrypt(x, layout) + ours.encrypt(-2 * x / 4, layout)
    np.testing.assert_allclose(ours.decrypt(total), x / 2, rtol=0, atol=2**-20)


def test_the_remainder_modulo_n_tells_nothing_of_the_values() -> None:
    """c mod n is r^n mod n: had r been left out, or used twice, ciphertexts would agree there."""
    n = key_of().public.n
    found = {int(c % n) for x in (0.0, 1.0) for c in paillier().encrypt(np.full(60, x), layout_of()).ciphertexts}
    assert len(found) == 2 * layout_of().ciphertexts(60)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, -1500.0])
def test_what_cannot_be_encrypted_is_refused(bad: float) -> None:
    x = values(20)
    x[13] = bad
    with raises(EncryptionError):
        paillier().encrypt(x, layout_of())


def test_other_keys_layouts_and_numbers_are_refused() -> None:
    other = generate(256, for_tests=True)
    with raises(EncryptionError):
        paillier().encrypt(values(3), layout_of(512))
    with raises(EncryptionError):
        paillier().decrypt(Paillier(key_owner(other, "gmp")).encrypt(values(3), layout_of()))
    vector = paillier().encrypt(values(5), layout_of())
    nonsense = GmpResidues.of(key_of().public, [key_of().public.n_squared - 12345])
    vector.ciphertexts.put([0], nonsense)
    with raises(EncryptionError):
        paillier().decrypt(vector)


def test_a_sum_larger_than_its_declared_additions_allow_is_refused() -> None:
    part = paillier().encrypt(np.array([900.0]), layout_of())
    assert paillier().decrypt(part + part).tolist() == [1800.0]
    with raises(EncryptionError):
        paillier().decrypt((part + part).settled())


def test_the_meter_counts_ciphertexts_and_time() -> None:
    mine = Paillier(owner())
    assert mine.meter == CipherMeter()
    vector = mine.encrypt(values(50), layout_of())
    many = len(vector.ciphertexts)
    assert mine.meter.encryptions == many > 1
    assert mine.meter.encryption_ns > 0
    assert mine.meter.decryptions == mine.meter.decryption_ns == 0
    mine.decrypt(vector)
    mine.decrypt(vector)
    assert mine.meter.decryptions == 2 * many
    assert mine.meter.encryptions == many
    with raises(EncryptionError):
        mine.encrypt(np.array([np.nan]), layout_of())
    assert mine.meter.encryptions == many


def from_what_it_decrypts_to(key: PublicKey, plaintext: int) -> int | None:
    """Return a factor of n if the plaintext is (p+q)^-1 modulo n."""
    total = gmpy2.invert(plaintext, key.n)  # p + q, and so p and q are the roots of x^2 - total x + n
    square = total * total - 4 * key.n
    return int(total + gmpy2.isqrt(square)) // 2 if square > 0 and gmpy2.is_square(square) else None


@of_both
@pytest.mark.parametrize("number", ["n", "2 n", "n^2 - n", "p", "3 q", "p^2"])
def test_what_is_no_ciphertext_is_not_decrypted(number: str, backend: Backend) -> None:
    key = key_of()
    n, p, q = key.public.n, key.p, key.q
    chosen = {"n": n, "2 n": 2 * n, "n^2 - n": n * n - n, "p": p, "3 q": 3 * q, "p^2": p * p}[number]
    ciphertexts = [*paillier().encrypt(values(12), layout_of()).ciphertexts, gmpy2.mpz(chosen)]
    layout = layout_of()
    vector = CipherVector(
        key.public, layout, layout.slots * len(ciphertexts), 1, GmpResidues.of(key.public, ciphertexts)
    )
    with raises(EncryptionError) as caught:
        paillier(backend=backend).decrypt(vector)
    assert not any(str(secret) in str(caught.value) for secret in (n, p, q, chosen))
    with raises(EncryptionError):  # also where the plaintext would be in range
        _ = [half.plaintexts([gmpy2.powmod(chosen, half.order, half.square)]) for half in (key.modulo_p, key.modulo_q)]


def test_the_private_key_would_follow_from_one_decryption_of_n() -> None:
    """Why it is refused: without the check, the plaintext of c = n is the inverse of p + q."""
    key, ciphertext = key_of(), gmpy2.mpz(key_of().public.n)
    residues = []
    for half in (key.modulo_p, key.modulo_q):
        power = gmpy2.powmod(ciphertext, half.order, half.square)
        assert power == 0
        residues.append((power - 1) // half.prime * half.weight % half.prime)
    assert from_what_it_decrypts_to(key.public, int(key.plaintext(*residues))) in (key.p, key.q)
