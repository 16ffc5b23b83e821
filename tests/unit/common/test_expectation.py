"""A reply is what was asked for, or an error that names the first difference."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import PayloadError
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import (
    ArraySpec,
    CipherSpec,
    Expectation,
    Expected,
    NumberSpec,
    check,
    finiteness_problem,
    largest_body,
)
from fenchel.common.wire.values import SparseVector, Value
from tests.unit.common.textbook import KEY, OTHER_KEY

MODEL = np.zeros(3)
OPEN = ArraySpec(np.float64, (None, 2))
BOUNDED = ArraySpec(np.float64, (None, 2), most=7)
THIN = ArraySpec(np.float64, (5,), sparse=True)
AGREED = ArraySpec(np.float64, (5,), sparse=True, count=2)
LAYOUT = Layout(slot_bits=40, fraction_bits=20, slots=6, value_bits=30)
HIDDEN = CipherSpec(KEY, LAYOUT, 7, additions=2)


def sparse(values: list[float], size: int = 5, dtype: str = "float64") -> SparseVector:
    return SparseVector(np.arange(len(values)), np.array(values, dtype), size)


def encrypted(
    number: int = 5, count: int = 7, additions: int = 1, layout: Layout = LAYOUT, key_id: bytes = KEY.id
) -> Ciphertexts:
    """Return an encrypted vector whose last ciphertext is this number."""
    width = KEY.ciphertext_bytes
    rows = layout.ciphertexts(count)
    data = (b"".join([b"\1" * width] * rows))[: (rows - 1) * width] + number.to_bytes(width, "big")
    return Ciphertexts(key_id, layout, count, additions, width, data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.ones(3), MODEL),
        (np.ones((0, 2)), OPEN),
        (np.ones((7, 2)), OPEN),
        (np.ones(5), THIN),
        (sparse([1.0]), THIN),
        (sparse([1.0, 0.0]), AGREED),
        (np.array([True]), ArraySpec(np.bool_, (1,))),
        (np.ones((), np.float32), ArraySpec(np.dtype("float32"), ())),
        (encrypted(), HIDDEN),
        (encrypted(additions=2), HIDDEN),
        (encrypted(additions=0), HIDDEN),
        (encrypted(1), HIDDEN),
        (encrypted(KEY.n**2 - 1), HIDDEN),
        (True, bool),
        (3, int),
        (3.0, float),
        (3, float),
        ("x", str),
        (1e308, NumberSpec()),
        (3, NumberSpec()),
        (0.0, NumberSpec(minimum=0, maximum=1)),
        (1, NumberSpec(minimum=0, maximum=1)),
        (7, NumberSpec(int, minimum=7, maximum=7)),
        (-(2**62), NumberSpec(int, maximum=7)),
    ],
)
def test_what_was_asked_for_is_accepted(value: Value, expected: Expected) -> None:
    check({"x": value}, {"x": expected}, client="client-1")


@pytest.mark.parametrize(
    ("value", "expected", "told"),
    [
        (np.ones(4), MODEL, r"has shape \(4,\), expected \(3,\)"),
        (np.ones((3, 1)), MODEL, "has shape"),
        (np.ones((2, 3)), OPEN, r"expected \('any', 2\)"),
        (np.ones(3, np.float32), MODEL, "has dtype float32, expected float64"),
        (np.ones(3, np.int64), MODEL, "has dtype int64"),
        (np.array([1.0, np.nan, 0.0]), MODEL, "1 values that are not finite, the first at position 1"),
        (np.array([np.inf, 0.0, -np.inf]), MODEL, "2 values that are not finite, the first at position 0"),
        (sparse([1.0], 3), MODEL, "is sparse"),
        (sparse([1.0], 6), THIN, "has shape"),
        (sparse([np.nan]), THIN, "not finite"),
        (sparse([1.0], dtype="float32"), THIN, "has dtype"),
        (sparse([1.0]), AGREED, "has 1 entries given, expected 2"),
        (sparse([1.0, 2.0, 3.0]), AGREED, "has 3 entries given, expected 2"),
        (sparse([1.0, 2.0], 6), AGREED, "has shape"),
        (sparse([1.0, np.nan]), AGREED, "not finite"),
        (np.ones(5), AGREED, "is a dense array, expected a sparse vector with 2 entries given"),
        (1.0, MODEL, "is a float, expected an array"),
        (np.ones(3), float, "is an array, expected a float"),
        (sparse([1.0]), int, "is an array, expected a int"),
        (np.ones(7), HIDDEN, "is an array, expected an encrypted vector"),
        (sparse([1.0]), HIDDEN, "is an array, expected an encrypted vector"),
        (1.0, HIDDEN, "is the float 1.0, expected an encrypted vector"),
        (encrypted(), MODEL, "is an encrypted vector, expected an array"),
        (encrypted(), THIN, "is an encrypted vector, expected an array"),
        (encrypted(), float, "is an encrypted vector, expected a float"),
        (encrypted(key_id=OTHER_KEY.id), HIDDEN, f"{OTHER_KEY.fingerprint}, expected {KEY.fingerprint}"),
        (encrypted(layout=LAYOUT.rescaled(1)), HIDDEN, "21 of them after the point; expected .* 20 of them"),
        (encrypted(count=8), HIDDEN, "holds 8 encrypted values, expected 7"),
        (encrypted(additions=3), HIDDEN, "is a sum of 3 encrypted vectors, expected at most 2"),
        (encrypted(0), HIDDEN, "out of range .the one at position 1"),
        (encrypted(KEY.n**2), HIDDEN, "out of range .the one at position 1"),
        (True, int, "is the bool True"),
        (1, bool, "is the int 1"),
        (True, float, "is the bool True"),
        (1.0, int, "is the float 1.0"),
        ("1", int, "is the str '1'"),
        (float("nan"), float, "is nan"),
        (float("-inf"), float, "is -inf"),
        (float("nan"), NumberSpec(), "is nan, expected a finite number"),
        (float("inf"), NumberSpec(), "is inf, expected a finite number"),
        (1e308, NumberSpec(maximum=1e100), r"is 1e\+308, expected at most 1e\+100$"),
        (-1e-9, NumberSpec(minimum=0, hint="see the page"), "is -1e-09, expected at least 0; see the page$"),
        (1234567, NumberSpec(int, maximum=1234566), "is 1234567, expected at most 1234566"),
        (0, NumberSpec(int, minimum=1), "is 0, expected at least 1"),
        (1.0, NumberSpec(int), r"is the float 1\.0, expected a int"),
        (True, NumberSpec(), "is the bool True, expected a float"),
        (np.ones(3), NumberSpec(), "is an array, expected a float"),
    ],
)
def test_anything_else_is_refused_and_the_error_says_from_whom(
    value: Value, expected: Expected, told: str
) -> None:
    with pytest.raises(PayloadError, match=f"client-1, round 4: 'x' .*{told}"):
        check({"x": value}, {"x": expected}, client="client-1, round 4")


@pytest.mark.parametrize("names", [(), ("x",), ("y",), ("x", "y", "z")])
def test_no_name_may_be_missing_or_new(names: tuple[str, ...]) -> None:
    expectation: Expectation = {"x": float, "y": float}
    with pytest.raises(PayloadError, match=r"expected \['x', 'y'\]"):
        check(dict.fromkeys(names, 1.0), expectation, client="client-1")


def test_names_that_somebody_else_chose_are_told_in_short() -> None:
    names = {"\x1b[31m\n" + "A" * 900_000: 1.0} | {f"name {number}": 1.0 for number in range(10_000)}
    with pytest.raises(PayloadError, match="got values named") as caught:
        check(names, {"loss": float}, client="client a")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finite_values_whose_squares_overflow_are_finite(dtype: str) -> None:
    array = np.full(9, np.finfo(dtype).max, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert finiteness_problem(array) is None
        array[7] = np.nan
        assert "position 7" in (finiteness_problem(array) or "")


@given(
    array=st.sampled_from(["float16", "float32", "float64"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    )
)
def test_the_fast_check_agrees_with_numpy(array: np.ndarray) -> None:
    assert (finiteness_problem(array) is None) == bool(np.isfinite(array).all())


@given(
    size=st.integers(0, 300),
    part=st.floats(0, 1),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["f8", "f4", "f2", "u1"]),
)
def test_no_honest_payload_is_larger_than_the_largest(size: int, part: float, seed: int, dtype: str) -> None:
    chance = np.random.default_rng(seed)
    indices = np.flatnonzero(chance.random(size) < part)
    thin = SparseVector(indices, np.ones(len(indices), dtype), size)
    expected: Expectation = {
        "x": ArraySpec(np.dtype(dtype), (size,), sparse=True),
        "y": np.zeros((2, 3)),
        "n": int,
    }
    most = largest_body(expected)
    assert most is not None
    for x in (thin, np.ones(size, dtype)):
        assert encode({"x": x, "y": np.zeros((2, 3)), "n": 1}).size <= most


def test_the_largest_payload_is_known_where_all_lengths_are() -> None:
    assert largest_body({}) == largest_body({"loss": float, "n": NumberSpec(int, 1)}) == 0
    assert largest_body({"model": MODEL}) == encode({"model": MODEL}).size == 24
    assert largest_body({"hidden": HIDDEN}) == 2 * KEY.ciphertext_bytes + -2 * KEY.ciphertext_bytes % 8
    assert largest_body({"model": MODEL, "open": OPEN}) is None
    assert largest_body({"model": MODEL, "bounded": BOUNDED}) == 24 + encode({"x": np.ones((7, 2))}).size


def test_an_open_length_may_be_bounded() -> None:
    check({"x": np.ones((7, 2))}, {"x": BOUNDED}, client="a client")
    with pytest.raises(PayloadError, match=r"'x' has shape \(8, 2\), expected at most 7 in an open length"):
        check({"x": np.ones((8, 2))}, {"x": BOUNDED}, client="a client")
