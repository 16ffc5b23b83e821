"""Each backend reads, adds up and decrypts what another one writes, and all compute the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import Backend, PublicKey
from fenchel.common.crypto.residues.choice import residues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, SettingsError
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import generate, key_owner
from tests.ifma_kernel import in_use
from tests.messages import raises
from tests.unit.client.paillier_keys import key_of

BACKENDS: tuple[Backend, ...] = ("gmp", "ifma", "phe")
LAYOUT = Layout.fit(256, fraction_bits=20, largest=1000.0, additions=1000)

by = st.sampled_from(BACKENDS)


@pytest.fixture(scope="module", autouse=True)
def kernel() -> Iterator[None]:
    with in_use("emulated"):
        yield


@cache
def paillier(backend: Backend) -> Paillier:
    pytest.importorskip("phe", reason="phe is not installed")
    return Paillier(key_owner(key_of(), backend))


def read_by(backend: Backend, vector: CipherVector) -> CipherVector:
    """Return a vector as it arrives where something else computes."""
    return CipherVector.from_wire(vector.to_wire(), PublicKey(vector.key.n, backend))


def values(count: int, seed: int) -> NDArray[np.float64]:
    return np.rint(np.random.default_rng(seed).uniform(-999, 999, count) * 2**20) / 2**20


@given(encrypts=by, adds=by, decrypts=by, count=st.integers(0, 20), seed=st.integers(0, 2**32))
def test_sums_pass_from_one_to_another(
    encrypts: Backend, adds: Backend, decrypts: Backend, count: int, seed: int
) -> None:
    x, y = values(count, seed), values(count, seed + 1)
    mine, yours = (read_by(adds, paillier(encrypts).encrypt(each, LAYOUT)) for each in (x, y))
    total = read_by(decrypts, mine + yours + CipherVector.zeros(mine.key, LAYOUT, count))
    np.testing.assert_array_equal(paillier(decrypts).decrypt(total), x + y)


@given(factor=st.integers(-50, 50), shift=st.integers(0, 8), seed=st.integers(0, 2**32))
def test_all_that_is_computed_on_the_same_ciphertexts_is_the_same_number(factor: int, shift: int, seed: int) -> None:
    places = np.random.default_rng(seed).integers(0, 5, 3)
    first, second = (paillier("gmp").encrypt(values(5 * LAYOUT.slots, seed + each), LAYOUT) for each in range(2))
    found = []
    for backend in BACKENDS:
        vector, other = read_by(backend, first), read_by(backend, second)
        picked = other.take(places)
        vector.add_at(places, picked)
        vector.replace_at([4], other.take([0]))
        found.append([list((vector + other).ciphertexts), list(vector.times(factor, shift).ciphertexts)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_without_inverse_is_neither_decrypted_nor_inverted(backend: Backend) -> None:
    key = PublicKey(key_of().public.n, backend)
    bad = residues(backend).of(key, [mpz(5), mpz(key_of().p)])
    with raises(EncryptionError):
        paillier(backend).decrypt(CipherVector(key, LAYOUT, 2 * LAYOUT.slots, 1, bad))
    with raises(EncryptionError):
        CipherVector(key, LAYOUT, 2 * LAYOUT.slots, 1, bad).times(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_that_phe_has_made_serves_all(backend: Backend) -> None:
    pytest.importorskip("phe", reason="phe is not installed")
    key = generate(256, "phe", for_tests=True)
    assert key.public.bits == 256
    again = PrivateKey.from_fields(key.to_fields())
    assert again == key
    mine = Paillier(key_owner(again, backend))
    np.testing.assert_array_equal(mine.decrypt(mine.encrypt(values(9, 0), LAYOUT)), values(9, 0))


def test_phe_makes_no_key_that_protects_nothing() -> None:
    with raises(SettingsError):
        generate(1024, "phe")


def test_where_phe_is_not_installed_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*(each for each in sys.modules if each.startswith("phe")), "fenchel.common.crypto.residues.phe"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "phe", None)
    key = "algorithm.encryption.implementation"
    for refused in (lambda: residues("phe"), lambda: key_owner(key_of(), "phe"), lambda: generate(2048, "phe")):
        with raises(SettingsError, key=key):
            refused()
