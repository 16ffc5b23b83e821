"""A sealed box opens for its owner, in its context, unchanged; and in no other case."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import CredentialError
from fenchel.keys.sealing import seal, unseal
from tests.messages import raises

KEY = X25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


@given(st.binary(max_size=5000), st.binary(max_size=100))
def test_what_was_sealed_opens_for_the_owner_of_the_key(message: bytes, context: bytes) -> None:
    box = seal(message, PUBLIC, context)
    assert unseal(box, KEY, context) == message
    assert len(box) == 32 + len(message) + 16


def test_no_two_boxes_are_alike_and_none_shows_what_is_in_it() -> None:
    message = b"the private key" * 10
    boxes = {seal(message, PUBLIC, b"run") for _ in range(20)}
    assert len({box[:32] for box in boxes}) == 20
    assert all(b"private" not in box for box in boxes)


def test_it_opens_neither_in_another_context_nor_with_another_key() -> None:
    with raises(CredentialError):
        unseal(seal(b"secret", PUBLIC, b"run 1"), KEY, b"run 2")
    with raises(CredentialError):
        unseal(seal(b"secret", PUBLIC, b"run"), X25519PrivateKey.generate(), b"run")


@given(st.data())
def test_a_box_with_one_bit_changed_does_not_open(data: st.DataObject) -> None:
    box = bytearray(seal(b"secret", PUBLIC, b"run"))
    # The highest bit of an X25519 key has no meaning (RFC 7748), but the box is bound to its bytes all the same.
    bit = data.draw(st.integers(0, 8 * len(box) - 1))
    box[bit // 8] ^= 1 << bit % 8
    with raises(CredentialError):
        unseal(bytes(box), KEY, b"run")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_box_are_refused(box: bytes) -> None:
    with raises(CredentialError):
        unseal(box, KEY, b"run")


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), (1).to_bytes(32, "little"), bytes(33)])
def test_what_is_no_public_key_or_one_that_everybody_knows_the_secret_of_is_refused(public: bytes) -> None:
    with raises(CredentialError):
        seal(b"secret", public, b"run")
    with raises(CredentialError):
        unseal(public.ljust(32, b"\0") + bytes(40), KEY, b"run")
