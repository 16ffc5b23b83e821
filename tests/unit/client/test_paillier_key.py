"""A private key is what it claims, and comes back from its file form as it was, or not at all."""

from __future__ import annotations

import json
from math import gcd, isqrt, prod

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.client.paillier.key import PrivateKey, generate
from fenchel.common.errors import CredentialError, SettingsError
from tests.messages import raises
from tests.unit.client.paillier_keys import key_of


def edited(**changes: object) -> str:
    return json.dumps({**key_of().to_fields(), **changes})


def is_square(number: int) -> bool:
    return isqrt(number) ** 2 == number


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
    assert gcd(key.public.n, (key.p - 1) * (key.q - 1)) == 1


def test_no_two_keys_share_a_prime() -> None:
    keys = [generate(256, for_tests=True) for _ in range(20)]
    assert len({prime for key in keys for prime in (key.p, key.q)}) == 40


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
    assert key.modulo_p.residues([c]) == [m % key.p]
    assert key.modulo_q.residues([c]) == [m % key.q]


@pytest.mark.parametrize("bits", [256, 2048])
@pytest.mark.parametrize("factors_known", [True, False])
def test_a_key_comes_back_from_its_text(bits: int, factors_known: bool) -> None:
    key = key_of(bits) if factors_known else PrivateKey(key_of(bits).p, key_of(bits).q)
    again = PrivateKey.from_text(key.to_text())
    assert again == key
    assert again.factors_known == factors_known


def test_neither_words_nor_errors_show_secret_numbers() -> None:
    key = key_of()
    shown = [repr(key), str(key), f"{key}", repr(key.modulo_p), repr(key.modulo_q)]
    p_hex = f"{key.p:x}"
    for text in (edited(p="00" + p_hex[2:]), key.to_text()[:-30], edited(p_factors=[p_hex]), edited(x=p_hex)):
        with raises(CredentialError, source="private key") as caught:
            PrivateKey.from_text(text)
        assert caught.value.__cause__ is None
        shown.append(str(caught.value))
    for secret in (key.p, key.q, *key.p_factors[1:], *key.q_factors[1:]):
        for text in shown:
            assert f"{secret:x}" not in text
            assert str(secret) not in text


def test_a_public_key_is_refused_by_name() -> None:
    with raises(CredentialError):
        PrivateKey.from_text(key_of().public.to_text(), "hospital/key.json")


def test_a_key_that_phe_wrote_is_told_where_to_go() -> None:
    with raises(CredentialError, source="private key"):
        PrivateKey.from_text(json.dumps({"kty": "DAJ", "p": "x", "q": "y", "pub": {}}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[1]",
        "3",
        "{}",
        edited(kind="other"),
        edited(version=2),
        edited(version=True),
        edited(surplus=1),
        edited(p=3),
        edited(p="-5"),
        edited(p="FF"),
        edited(p="f" * 5000),
        edited(p="9"),
        edited(p="d"),
        edited(p=f"{key_of().q:x}"),
        edited(n="f"),
        edited(q_factors=[]),
        edited(q_factors="2"),
        edited(q_factors=["2"]),
        edited(q_factors=["3", "5"]),
        edited(q_factors=["1"]),
        '{"kind": 1, "kind": 2}',
    ],
)
def test_a_text_that_is_no_private_key_is_refused(text: str) -> None:
    with raises(CredentialError, source="key.json") as caught:
        PrivateKey.from_text(text, "key.json")
    assert str(caught.value).startswith("key.json: ")


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_other_text_is_refused_and_nothing_else_happens(text: str) -> None:
    with raises(CredentialError, source="private key"):
        PrivateKey.from_text(text)


@given(st.dictionaries(st.sampled_from(sorted(key_of().to_fields())), st.text("0123456789abcdefxyz"), min_size=1))
def test_changed_fields_are_refused(changes: dict[str, str]) -> None:
    with raises(CredentialError, source="private key"):
        PrivateKey.from_text(edited(**changes))


def test_the_two_primes_are_not_close() -> None:
    """Fermat's way of factoring finds primes near the square root of n."""
    n = key_of(512).public.n
    root = isqrt(n)
    assert not any(is_square((root + step) ** 2 - n) for step in range(1, 10_000))
