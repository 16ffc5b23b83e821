"""What is computed on ciphertexts is what the textbook computes on numbers, and what cannot be added is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import CipherSpec, check
from tests.messages import raises
from tests.unit.common.textbook import KEY, OTHER_KEY, P, Q, decrypted, values_of, vector

LAYOUT = Layout(slot_bits=40, fraction_bits=10, slots=6, value_bits=30)
ROOMY = Layout(slot_bits=60, fraction_bits=10, slots=4, value_bits=30)
few = settings(max_examples=25)

GRID = st.integers(-LAYOUT.largest_fresh, LAYOUT.largest_fresh).map(lambda whole: whole / 1024)
VECTORS = st.lists(GRID, max_size=14)


def wide(additions: int, count: int = 7, key: PublicKey = KEY, layout: Layout = LAYOUT) -> CipherVector:
    """Return a vector that says it is a sum of so many."""
    return CipherVector(key, layout, count, additions, GmpResidues.of(key, [gmpy2.mpz(5)] * layout.ciphertexts(count)))


@few
@given(data=st.data(), values=VECTORS)
def test_a_sum_of_vectors_is_the_sum_of_their_values(data: st.DataObject, values: list[float]) -> None:
    addends = [values] + [
        data.draw(st.lists(GRID, min_size=len(values), max_size=len(values)))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    total = CipherVector.zeros(KEY, LAYOUT, len(values))
    for seed, addend in enumerate(addends):
        total = total + vector(addend, LAYOUT, 100 * seed)
    assert values_of(total) == [sum(column) for column in zip(*addends, strict=True)]
    assert total.additions == (len(addends) if values else 0)
    assert len(total) == len(values)


@few
@given(values=st.lists(GRID, min_size=1, max_size=14), numerator=st.integers(-40, 40), shift=st.integers(0, 9))
def test_a_multiple_of_a_vector_is_the_exact_multiple_of_its_values(
    values: list[float], numerator: int, shift: int
) -> None:
    product = vector(values, ROOMY).times(numerator, shift)
    assert values_of(product) == [float(Fraction(value) * numerator / (1 << shift)) for value in values]
    assert product.layout == ROOMY.rescaled(shift)
    largest = Fraction(abs(numerator) * ROOMY.largest_fresh)
    assert (
        product.additions * product.layout.largest_fresh
        >= largest
        > ((product.additions - 1) * product.layout.largest_fresh)
    )


def test_additions_of_multiples_are_counted_before_a_slot_overflows() -> None:
    most = ROOMY.max_additions
    assert wide(1, layout=ROOMY).times(most).additions == most
    assert wide(1, layout=ROOMY).times(-most).additions == most
    with raises(EncryptionError):
        wide(1, layout=ROOMY).times(most + 1)
    with raises(EncryptionError):
        wide(1, layout=ROOMY).times(1, 30)
    with raises(EncryptionError):
        wide(1).times(1, -1)


def test_the_largest_sum_that_is_permitted_does_not_overflow() -> None:
    most = LAYOUT.max_additions
    assert most == 512
    limit = LAYOUT.largest
    total = vector([limit, -limit, limit], LAYOUT).times(most)
    assert values_of(total) == [most * limit, -most * limit, most * limit]
    plaintexts = [decrypted(ciphertext) for ciphertext in total.ciphertexts]
    assert LAYOUT.unpack(plaintexts, 3, KEY.n, most).tolist() == values_of(total)
    with raises(EncryptionError):
        total + vector([0.0, 0.0, 0.0], LAYOUT)


@pytest.mark.parametrize(
    "combine",
    [
        lambda: wide(1) + wide(1, key=OTHER_KEY),
        lambda: wide(1).add_at([0, 1], wide(1, key=OTHER_KEY)),
        lambda: wide(1) + wide(1, layout=replace(LAYOUT, slot_bits=41)),
        lambda: wide(1) + wide(1, layout=LAYOUT.rescaled(1)),
        lambda: wide(1) + wide(1, layout=replace(LAYOUT, value_bits=29)),
        lambda: wide(1).add_at([0], wide(1, 1, layout=LAYOUT.rescaled(1))),
        lambda: wide(1) + wide(1, 8),
        lambda: wide(300) + wide(213),
        lambda: wide(512).add_at([1], wide(1, 1)),
        lambda: wide(1).add_at([1], wide(1)),
        lambda: wide(1).add_at([0, 2], wide(1)),
        lambda: wide(1).add_at([-1, 0], wide(1)),
        lambda: wide(1).take([0, 5]),
        lambda: wide(513),
        lambda: wide(-1),
        lambda: CipherVector(KEY, LAYOUT, 7, 1, GmpResidues.of(KEY, [gmpy2.mpz(5)])),
        lambda: CipherVector(KEY, LAYOUT, -1, 1, GmpResidues.of(KEY, [])),
        lambda: wide(1, layout=replace(LAYOUT, slots=7)),
        lambda: CipherVector(KEY, LAYOUT, 1, 1, GmpResidues.of(KEY, [gmpy2.mpz(KEY.n)])).times(-1),
    ],
)
def test_what_cannot_be_combined_is_refused_and_the_error_says_why(combine: Callable[[], object]) -> None:
    with raises(EncryptionError):
        combine()


@few
@given(values=st.lists(GRID, min_size=1, max_size=14), data=st.data())
def test_whole_ciphertexts_are_taken_and_added_at_their_positions(values: list[float], data: st.DataObject) -> None:
    whole = vector(values, LAYOUT)
    padded = values + [0.0] * (-len(values) % LAYOUT.slots)
    blocks = [padded[at : at + LAYOUT.slots] for at in range(0, len(padded), LAYOUT.slots)]
    indices = data.draw(st.lists(st.integers(0, len(blocks) - 1), max_size=4))
    taken = whole.take(np.array(indices, np.int64))
    assert taken.count == len(indices) * LAYOUT.slots
    assert values_of(taken) == [value for place in indices for value in blocks[place]]

    total = CipherVector.zeros(KEY, LAYOUT, len(padded))
    total.add_at(indices, taken)
    expected = [indices.count(place) * value for place, block in enumerate(blocks) for value in block]
    assert values_of(total) == expected
    assert total.additions == max((indices.count(place) for place in indices), default=0)


def test_additions_are_counted_for_each_ciphertext_apart() -> None:
    total = CipherVector.zeros(KEY, LAYOUT, 3 * LAYOUT.slots)
    total.add_at([0, 1], wide(500, 12))
    total.add_at([1, 2], wide(12, 12))
    assert total.additions == 512
    assert [total.take([place]).additions for place in range(3)] == [500, 512, 12]
    total.add_at([0, 2], wide(12, 12))
    before = list(total.ciphertexts)
    with raises(EncryptionError):
        total.add_at([0, 1], wide(1, 12))
    assert list(total.ciphertexts) == before
    assert [total.take([place]).additions for place in range(3)] == [512, 512, 24]


def test_a_settled_vector_is_the_same_and_counts_as_one() -> None:
    total = vector([1.0, -2.0], LAYOUT) + vector([0.5, 0.5], LAYOUT, 9)
    settled = total.settled()
    assert total.additions == 2
    assert settled.additions == 1
    assert values_of(settled) == [1.5, -1.5]
    settled.add_at([0], vector([1.0], LAYOUT))
    assert values_of(total) == [1.5, -1.5]


def travelled(wire: Ciphertexts) -> Ciphertexts:
    encoded = encode({"x": wire})
    assert outline(encoded.descriptor, 1 << 20).size == encoded.size
    found = outline(encoded.descriptor, 1 << 40).decode(encoded.joined())["x"]
    assert isinstance(found, Ciphertexts)
    return found


@pytest.mark.parametrize("count", [0, 1, 6, 13])
def test_a_vector_comes_back_from_the_wire(count: int) -> None:
    values = [float(at) - 3 for at in range(count)]
    total = vector(values, LAYOUT) + vector(values, LAYOUT, 50)
    back = CipherVector.from_wire(travelled(total.to_wire()), KEY)
    assert list(back.ciphertexts) == list(total.ciphertexts)
    assert (back.key, back.layout, back.count, back.additions) == (KEY, LAYOUT, count, total.additions)
    assert values_of(back) == [2 * value for value in values]


GOOD = wide(2).to_wire()
WIDTH = KEY.ciphertext_bytes


def with_first(number: int) -> bytes:
    return number.to_bytes(WIDTH, "big") + bytes(GOOD.data)[WIDTH:]


@pytest.mark.parametrize(
    "change",
    [
        {"key_id": OTHER_KEY.id},
        {"key_id": b""},
        {"data": with_first(0)},
        {"data": with_first(KEY.n**2)},
        {"data": b"\xff" * (2 * WIDTH)},
        {"data": bytes(GOOD.data)[:-1]},
        {"data": bytes(GOOD.data) * 2},
        {"data": b""},
        {"count": 13},
        {"count": -1},
        {"count": 1 << 62},
        {"additions": 513},
        {"additions": -1},
        {"ciphertext_bytes": WIDTH + 1},
        {"ciphertext_bytes": 0},
        {"layout": replace(LAYOUT, slots=7)},
        {"layout": Layout(51, 0, 5, 30)},
    ],
)
def test_a_vector_that_arrives_is_refused_unless_it_is_one(change: dict[str, object]) -> None:
    CipherVector.from_wire(GOOD, KEY)
    with raises(PayloadError):
        CipherVector.from_wire(replace(GOOD, **change), KEY)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [KEY.n, 2 * KEY.n, KEY.n**2 - KEY.n, P, 3 * Q, P * P])
@pytest.mark.parametrize("place", [0, 1])
def test_a_number_that_shares_a_factor_with_n_is_no_ciphertext(number: int, place: int) -> None:
    good = bytes(GOOD.data)
    data = good[: place * WIDTH] + number.to_bytes(WIDTH, "big") + good[(place + 1) * WIDTH :]
    hostile = replace(GOOD, data=data)
    with raises(PayloadError) as caught:
        CipherVector.from_wire(hostile, KEY)
    assert str(number) not in str(caught.value)
    with raises(PayloadError, client="a client", array="dual"):
        check({"dual": hostile}, {"dual": CipherSpec(KEY, GOOD.layout, GOOD.count, 2)}, client="a client")
    check({"dual": GOOD}, {"dual": CipherSpec(KEY, GOOD.layout, GOOD.count, 2)}, client="a client")


def test_ciphertexts_of_a_body_outlive_it() -> None:
    encoded = encode({"dual": GOOD})
    body = encoded.joined()
    found = outline(encoded.descriptor, 1 << 40).decode(body)["dual"]
    del body
    assert isinstance(found, Ciphertexts)
    assert list(CipherVector.from_wire(found, KEY).ciphertexts) == list(wide(2).ciphertexts)
