"""What a client seals comes out as it was, and what does not belong in an envelope is noticed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fenchel.algorithms.hyfdca.client_vectors import Clear, Encrypted
from fenchel.common.arrays import Indices
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import generate
from fenchel.keys.paillier.owner import key_owner
from tests.messages import raises

LAYOUT = Layout.fit(256, 20, largest=4.0, additions=10, slots=5)
SIZES = np.array([5, 5, 2, 3])


@cache
def paillier(which: int = 0) -> Paillier:
    key = generate(256, for_tests=True)
    return Paillier(key_owner(key, "gmp"))


def envelopes(sizes: Indices = SIZES) -> list[Clear]:
    return [Clear(sizes), Encrypted(sizes, LAYOUT, paillier())]


@hypothesis_settings(max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_values_come_back_whatever_blocks_are_sent(sizes: list[int], data: st.DataObject) -> None:
    own = np.array(sizes)
    chosen = data.draw(st.none() | st.sets(st.integers(0, len(sizes) - 1)))
    blocks = None if chosen is None else np.array(sorted(chosen), np.int64)
    whole = np.arange(float(own.sum())) / 8 - 1.5
    sent = np.repeat([blocks is None or block in blocks for block in range(len(sizes))], own)
    for envelope in envelopes(own):
        for others in (None, whole + 1):
            opened = envelope.open(envelope.seal(whole, blocks), blocks, others)
            np.testing.assert_array_equal(opened, np.where(sent, whole, 0 if others is None else others))
            opened += 1  # it may be written to
    sealed = Encrypted(own, LAYOUT, paillier()).seal(whole, blocks)
    assert isinstance(sealed, Ciphertexts)
    # One ciphertext a block, zeros among them: the number of messages says nothing of the values.
    assert sealed.count == 5 * (len(sizes) if blocks is None else len(blocks))


def test_two_envelopes_of_the_same_values_differ() -> None:
    one, other = (Encrypted(SIZES, LAYOUT, paillier()).seal(np.zeros(15)) for _ in range(2))
    assert isinstance(one, Ciphertexts)
    assert isinstance(other, Ciphertexts)
    width = one.ciphertext_bytes
    parts = {bytes(each.data[i : i + width]) for each in (one, other) for i in range(0, len(each.data), width)}
    assert len(parts) == 8


def test_plain_and_encrypted_runs_do_not_take_each_others_messages() -> None:
    clear, encrypted = envelopes()
    values = np.ones(15)
    with raises(PayloadError):
        clear.open(encrypted.seal(values))
    with raises(PayloadError):
        encrypted.open(clear.seal(values))


def test_another_number_of_blocks_is_refused() -> None:
    some = np.array([0, 2])
    for envelope in envelopes():
        sealed = envelope.seal(np.ones(15), some)
        with raises(PayloadError):
            envelope.open(sealed)
        with raises(PayloadError):
            envelope.open(sealed, np.array([0]))


def test_another_layout_and_another_key_are_refused() -> None:
    other = Layout.fit(256, 20, largest=4.0, additions=100, slots=5)
    own = Encrypted(SIZES, LAYOUT, paillier())
    with raises(PayloadError):
        own.open(Encrypted(SIZES, other, paillier()).seal(np.ones(15)))
    with raises(PayloadError):
        own.open(Encrypted(SIZES, LAYOUT, paillier(1)).seal(np.ones(15)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 8.5, -8.5])
def test_what_the_layout_cannot_hold_is_not_encrypted(value: float) -> None:
    values = np.zeros(15)
    values[7] = value
    with raises(EncryptionError):
        Encrypted(SIZES, LAYOUT, paillier()).seal(values)


def test_the_error_that_travels_to_the_server_does_not_hold_the_value(caplog: pytest.LogCaptureFixture) -> None:
    envelope = Encrypted(np.array([3]), LAYOUT, paillier(), "inner products (a setting)")
    with raises(EncryptionError) as raised:
        envelope.seal(np.array([1.0, 54.321, 2.0]))
    assert "54.3" not in str(raised.value)
    assert "position" not in str(raised.value)
    assert "54.3" in caplog.text  # whoever runs the client can look


def test_a_value_where_no_sample_is_shows_an_overflow() -> None:
    """The third block has two samples: its other three slots must stay zero."""
    full = Encrypted(np.array([5, 5, 5, 3]), LAYOUT, paillier()).seal(np.ones(18))
    with raises(EncryptionError):
        Encrypted(SIZES, LAYOUT, paillier()).open(full)
