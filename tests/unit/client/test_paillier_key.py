"""A private key is what it claims, and comes back from its file form as it was, or not at all."""

from __future__ import annotations

from math import gcd, isqrt, prod
from typing import Any

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.keys.paillier.key import PrivateKey, generate
from tests.messages import raises
from tests.unit.client.paillier_keys import key_of


def edited(**changes: object) -> dict[str, Any]:
    return key_of().to_fields() | changes


@pytest.mark.parametrize("bits", [128, 256, 258, 384, 512, 2048])
def test_a_made_key_has_the_promised_length_and_structure(bits: int) -> None:
    key = key_of(bits)
    assert key.public.bits == bits
    assert key.p != key.q
    for prime, factors in ((key.p, key.p_factors), (key.q, key.q_factors)):
        assert prime.bit_length() == bits // 2
        assert gmpy2.is_prime(prime)
        assert prime % 4 == 3
        assert prod(factors) == prime - 1
        assert all(gmpy2.is_prime(factor) for factor in factors)
        assert max(factors).bit_length() > bits // 3
    n, root = key.public.n, isqrt(key.public.n)
    assert gcd(n, (key.p - 1) * (key.q - 1)) == 1
    if bits >= 384:  # Fermat's way of factoring finds primes near the square root of n
        assert not any(isqrt((root + step) ** 2 - n) ** 2 == (root + step) ** 2 - n for step in range(1, 2000))
    assert PrivateKey.from_fields(key.to_fields()) == key


@pytest.mark.parametrize(("bits", "for_tests"), [(1024, False), (64, True), (2049, False)])
def test_a_length_that_protects_nothing_is_refused(bits: int, for_tests: bool) -> None:
    with raises(SettingsError):
        generate(bits, for_tests=for_tests)


def test_the_generator_of_the_residues_has_the_full_order() -> None:
    modulo = key_of().modulo_p
    for _ in range(10):
        h = modulo.generator()
        assert gmpy2.powmod(h, modulo.order, modulo.square) == 1
        for factor in modulo.factors:
            assert gmpy2.powmod(h, modulo.order // factor, modulo.square) != 1


@given(st.data())
def test_remainders_are_put_together_again(data: st.DataObject) -> None:
    key = key_of()
    plaintext = data.draw(st.integers(0, key.public.n - 1))
    assert key.plaintext(gmpy2.mpz(plaintext % key.p), gmpy2.mpz(plaintext % key.q)) == plaintext
    ciphertext = data.draw(st.integers(0, key.public.n**2 - 1))
    halves = (gmpy2.mpz(ciphertext % key.p**2), gmpy2.mpz(ciphertext % key.q**2))
    assert key.ciphertext(*halves) == ciphertext


@given(st.data())
def test_residues_are_the_plaintext_modulo_each_prime(data: st.DataObject) -> None:
    """Against the definition of encryption, with Python's own arithmetic."""
    key = key_of()
    n = key.public.n
    m, r = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, key.p - 1))
    c = gmpy2.mpz(pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n))
    for half in (key.modulo_p, key.modulo_q):
        assert half.plaintexts([gmpy2.powmod(c, half.order, half.square)]) == [m % half.prime]


def test_neither_words_nor_errors_show_secret_numbers() -> None:
    key = key_of()
    shown = [repr(key), str(key), f"{key}", repr(key.modulo_p), repr(key.modulo_q)]
    p_hex = f"{key.p:x}"
    for fields in (edited(p="00" + p_hex[2:]), edited(p_factors=[p_hex]), edited(x=p_hex)):
        with raises(CredentialError) as caught:
            PrivateKey.from_fields(fields)
        assert caught.value.__cause__ is None
        shown.append(str(caught.value))
    for secret in (key.p, key.q, *key.p_factors[1:], *key.q_factors[1:]):
        for text in shown:
            assert f"{secret:x}" not in text
            assert str(secret) not in text


@pytest.mark.parametrize(
    "fields",
    [
        *(None, [1], 3, {}),
        edited(kind="other"),
        *(edited(version=version) for version in (2, True)),
        edited(surplus=1),
        *(edited(p=p) for p in (3, "-5", "FF", "f" * 5000, "9", "d", f"{key_of().q:x}")),
        edited(n="f"),
        *(edited(q_factors=factors) for factors in ("2", ["2"], ["3", "5"], ["1"])),
    ],
    ids=lambda fields: "",
)
def test_what_is_no_private_key_is_refused(fields: object) -> None:
    with raises(CredentialError):
        PrivateKey.from_fields(fields)


@given(st.dictionaries(st.sampled_from(sorted(key_of().to_fields())), st.text("0123456789abcdefxyz"), min_size=1))
def test_changed_fields_are_refused(changes: dict[str, str]) -> None:
    with raises(CredentialError):
        PrivateKey.from_fields(edited(**changes))
