"""A public key is what it says, and nobody gives the server a private one by mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.crypto.public_key import PublicKey, looks_private
from fenchel.common.errors import CredentialError
from tests.messages import raises
from tests.unit.common.textbook import KEY, OTHER_KEY, P, Q, blum_prime

SHORT = 128


def read(text: str) -> PublicKey:
    return PublicKey.from_text(text, "public.key", smallest_bits=SHORT)


def test_another_key_has_another_id_and_the_same_key_the_same() -> None:
    assert KEY != OTHER_KEY
    assert KEY.id != OTHER_KEY.id
    again = PublicKey(gmpy2.mpz(KEY.n))
    assert again == KEY
    assert again.id == KEY.id
    assert hash(again) == hash(KEY)


@pytest.mark.parametrize(
    "n", [0, -P * Q, P >> 20, pytest.param(1 << 20_000, id="too long"), 2 * P * Q, 997 * P, P * P, blum_prime(256, 9)]
)
def test_a_number_that_is_no_product_of_two_primes_is_refused(n: int) -> None:
    with raises(CredentialError):
        PublicKey(n)


def test_a_key_for_tests_is_too_short_for_anything_else() -> None:
    with raises(CredentialError, source="public.key"):
        PublicKey.from_text(KEY.to_text(), "public.key")


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(KEY.to_text()) | fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 50_000,
        "[]",
        "[[1, 2]]",
        "3",
        "null",
        " " * 100_000 + KEY.to_text(),
        changed(kind="fenchel certificate"),
        changed(kind=None),
        changed(version=2),
        changed(version=True),
        changed(version="1"),
        changed(extra=1),
        changed().replace('"n"', '"m"'),
        changed()[:-1] + ', "n": "0x11"}',
        changed(n=KEY.n),
        changed(n=str(KEY.n)),
        changed(n=hex(KEY.n).upper()),
        changed(n=hex(KEY.n) + "\n"),
        changed(n="0x0" + hex(KEY.n)[2:]),
        changed(n="-" + hex(KEY.n)),
        changed(n="0x"),
        changed(n=hex(OTHER_KEY.n)),
        changed(fingerprint=None),
        changed(n=hex(KEY.n * 2)),
    ],
)
def test_a_text_that_is_no_public_key_is_refused_with_its_place(text: str) -> None:
    with raises(CredentialError, source="public.key"):
        read(text)


@pytest.mark.parametrize("kind", ["fenchel paillier private key", "fenchel client secrets"])
@pytest.mark.parametrize("dress", [lambda text: text, lambda text: "\ufeff" + text, lambda text: text + "{", str.strip])
def test_a_private_key_is_recognised_and_refused_where_a_public_one_is_wanted(
    kind: str, dress: Callable[[str], str]
) -> None:
    text = dress(changed(kind=kind, p=hex(P)))
    assert looks_private(text)
    with raises(CredentialError, source="public.key"):
        read(text)


@given(text=st.text(max_size=200), at=st.integers(0, 400), gone=st.integers(0, 5))
def test_any_text_is_the_key_or_an_error(text: str, at: int, gone: int) -> None:
    whole = KEY.to_text()
    for candidate in (text, whole[:at] + text + whole[at + gone :]):
        try:
            found = read(candidate)
        except CredentialError:
            continue
        assert found == KEY
