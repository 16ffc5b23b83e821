"""Packing is exact: the fast way gives what plain integers give, and refuses what would not fit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError
from tests.messages import raises
from tests.unit.common.textbook import KEY, multiples, packed, slots

N = KEY.n
ROOM = KEY.bits - 2


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout that fits the key."""
    slot_bits = draw(st.one_of(st.sampled_from([2, 31, 32, 33, 40, 53, 63, 64, 65, 80]), st.integers(2, ROOM)))
    return Layout(
        slot_bits=slot_bits,
        fraction_bits=draw(st.integers(0, 70)),
        slots=draw(st.integers(1, ROOM // slot_bits)),
        value_bits=draw(st.integers(1, slot_bits - 1)),
    )


@dataclass(frozen=True)
class Case:
    layout: Layout
    values: list[float]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A layout and a vector in its range, often at its ends, also between two multiples of 2^-f."""
    layout = draw(layouts())
    most = layout.largest_fresh
    # Of the floats that round to no more than the largest fresh value: quarters of a multiple where they exist.
    numbers = st.one_of(st.integers(-4 * most, 4 * most), st.sampled_from([-4 * most, 4 * most, 0, 2, -2, 6]))
    found = []
    for number in draw(st.lists(numbers, max_size=3 * layout.slots + 1)):
        value = float(Fraction(number, 4 << layout.fraction_bits))
        if abs(round(Fraction(value) * (1 << layout.fraction_bits))) > most:
            value = float(np.nextafter(value, 0.0))
        found.append(value)
    return Case(layout, found)


def residues(plaintexts: list[int]) -> list[int]:
    return [int(plaintext) % N for plaintext in plaintexts]


WIDE_AND_NEGATIVE = Case(Layout(64, 0, 3, 63), [-float(2**62), float(2**62), -1.0, 1.0])


@given(case=cases())
@example(case=WIDE_AND_NEGATIVE)
@example(case=Case(Layout(40, 2, 5, 30), [0.125, 0.375, -0.125, -0.375, 0.625]))
def test_plaintexts_are_those_of_plain_integers(case: Case) -> None:
    whole = multiples(case.values, case.layout)
    assert case.layout.pack(np.array(case.values, np.float64)) == packed(whole, case.layout)


@given(case=cases(), as_residues=st.booleans())
@example(case=WIDE_AND_NEGATIVE, as_residues=True)
def test_what_was_packed_comes_back_rounded_to_the_grid(case: Case, as_residues: bool) -> None:
    plaintexts = case.layout.pack(np.array(case.values, np.float64))
    back = case.layout.unpack(residues(plaintexts) if as_residues else plaintexts, len(case.values), N, 1)
    assert back.dtype == np.float64
    grid = 1 << case.layout.fraction_bits
    assert back.tolist() == [float(Fraction(whole, grid)) for whole in multiples(case.values, case.layout)]


@given(case=cases(), data=st.data())
def test_sums_of_plaintexts_are_exact_sums_of_values(case: Case, data: st.DataObject) -> None:
    layout = case.layout
    weights = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=min(layout.max_additions, 6)))
    mine = packed(multiples(case.values, layout), layout)
    total = [sum(weight * plaintext for weight in weights) % N for plaintext in mine]
    expected = [
        float(Fraction(sum(weights) * whole, 1 << layout.fraction_bits)) for whole in multiples(case.values, layout)
    ]
    assert layout.unpack(total, len(case.values), N, len(weights)).tolist() == expected


@given(layout=layouts(), data=st.data())
def test_a_slot_beyond_what_a_sum_can_reach_is_noticed(layout: Layout, data: st.DataObject) -> None:
    additions = data.draw(st.integers(0, min(layout.max_additions, 1000)))
    limit = additions * layout.largest_fresh
    place = data.draw(st.integers(0, layout.slots - 1))
    sign = data.draw(st.sampled_from([-1, 1]))
    numbers = [0] * layout.slots
    numbers[place] = sign * limit
    layout.unpack([packed(numbers, layout)[0] % N], layout.slots, N, additions)
    numbers[place] = sign * (limit + 1)
    with raises(EncryptionError):
        layout.unpack([packed(numbers, layout)[0] % N], layout.slots, N, additions)


@given(layout=layouts(), plaintext=st.integers(0, N - 1))
@example(layout=Layout(40, 0, 6, 30), plaintext=N // 2)
@example(layout=Layout(64, 0, 3, 63), plaintext=N - 1)
def test_any_plaintext_at_all_is_read_as_its_slots_say_or_refused(layout: Layout, plaintext: int) -> None:
    try:
        found = layout.unpack([plaintext], layout.slots, N).tolist()
    except EncryptionError:
        return
    whole = slots(plaintext, layout)
    assert packed(whole, layout)[0] % N == plaintext
    assert found == [float(Fraction(value, 1 << layout.fraction_bits)) for value in whole]


@pytest.mark.parametrize("slot_bits", [40, 70])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1024.0, -1e300, 1.7e308])
def test_what_cannot_be_encrypted_is_refused_by_its_position(slot_bits: int, bad: float) -> None:
    layout = Layout(slot_bits, 20, 3, 30)
    values = np.zeros(7)
    values[5] = bad
    with raises(EncryptionError):
        layout.pack(values)


@given(layout=layouts(), sign=st.sampled_from([-1, 1]))
def test_the_largest_value_fits_and_the_next_multiple_does_not(layout: Layout, sign: int) -> None:
    beyond = sign * float(Fraction(1 << layout.value_bits, 1 << layout.fraction_bits))
    with raises(EncryptionError):
        layout.pack(np.array([beyond]))
    most = sign * float(Fraction(layout.largest_fresh, 1 << layout.fraction_bits))
    if most != beyond:  # above 53 bits a float64 cannot tell the two apart
        assert layout.pack(np.array([most])) == [sign * layout.largest_fresh]


@given(
    fraction_bits=st.integers(0, 60),
    largest=st.floats(1e-6, 1e9),
    additions=st.integers(1, 10_000),
    slots=st.one_of(st.none(), st.integers(1, 3)),
)
def test_a_fitted_layout_has_room_for_what_was_asked_and_no_slot_is_wider_than_needed(
    fraction_bits: int, largest: float, additions: int, slots: int | None
) -> None:
    layout = Layout.fit(512, fraction_bits, largest, additions, slots)
    whole = round(Fraction(largest) * (1 << fraction_bits))
    assert whole <= layout.largest_fresh
    assert layout.value_bits == 1 or whole > layout.largest_fresh >> 1
    assert layout.max_additions >= additions
    bound = additions * layout.largest_fresh
    assert (1 << (layout.slot_bits - 2)) - 1 < bound <= (1 << (layout.slot_bits - 1)) - 1
    assert layout.slots == (slots or 510 // layout.slot_bits)


@pytest.mark.parametrize(
    ("key_bits", "fraction_bits", "largest", "additions", "slots"),
    [
        (256, 40, 1.0, 1, 7),
        (256, 300, 1.0, 1, None),
        (256, 40, 0.0, 1, None),
        (256, 40, float("inf"), 1, None),
        (256, 40, float("nan"), 1, None),
        (256, 40, 1.0, 0, None),
        (256, -1, 1.0, 1, None),
        (256, 40, 1.0, 1, 0),
    ],
)
def test_a_layout_that_cannot_be_is_not_fitted(
    key_bits: int, fraction_bits: int, largest: float, additions: int, slots: int | None
) -> None:
    with raises(EncryptionError):
        Layout.fit(key_bits, fraction_bits, largest, additions, slots)


@pytest.mark.parametrize(
    "numbers", [(40, 0, 3, 40), (40, 0, 3, 0), (1001, 0, 3, 30), (40, 1001, 3, 30), (40, -1, 3, 30), (40, 0, 0, 30)]
)
def test_numbers_that_contradict_each_other_are_no_layout(numbers: tuple[int, int, int, int]) -> None:
    with raises(EncryptionError):
        Layout(*numbers)


def test_a_layout_must_leave_two_bits_of_the_key() -> None:
    Layout(127, 0, 2, 60).check_fits(KEY)
    with raises(EncryptionError):
        Layout(51, 0, 5, 30).check_fits(KEY)


@given(layout=layouts(), shift=st.integers(0, 40))
def test_a_rescaled_layout_has_the_same_range_on_a_finer_grid(layout: Layout, shift: int) -> None:
    if layout.value_bits + shift >= layout.slot_bits:
        with raises(EncryptionError):
            layout.rescaled(shift)
        return
    finer = layout.rescaled(shift)
    assert finer.rescaled(-shift) == layout
    assert (finer.slot_bits, finer.slots) == (layout.slot_bits, layout.slots)
    assert 0 <= finer.largest - layout.largest <= 2.0**-layout.fraction_bits


def test_only_vectors_are_packed_and_only_as_many_plaintexts_as_needed_are_read() -> None:
    layout = Layout(40, 0, 3, 30)
    with raises(EncryptionError):
        layout.pack(np.zeros((2, 2)))
    with raises(EncryptionError):
        layout.unpack([0], 4, N)
    assert layout.pack(np.zeros(0)) == []
    assert layout.unpack([], 0, N).tolist() == []


@pytest.mark.parametrize("slot_bits", [40, 70])
def test_slots_that_are_left_over_must_be_empty(slot_bits: int) -> None:
    layout = Layout(slot_bits, 0, 3, 30)
    layout.unpack(packed([1, 2], layout), 2, N)
    with raises(EncryptionError):
        layout.unpack(packed([1, 2, -1], layout), 2, N)
