"""A reply is what was asked for, or an error that names the first difference."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fenchel.common.arrays import require_finite
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import NotFiniteError, PayloadError
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import ArraySpec, CipherSpec, Expectation, Expected, NumberSpec, body_bounds, check
from fenchel.common.wire.values import SparseVector, Value
from tests.messages import raises
from tests.unit.common.textbook import KEY, OTHER_KEY

MODEL = np.zeros(3)
OPEN = ArraySpec(np.float64, (None, 2))
BOUNDED = ArraySpec(np.float64, (None, 2), most=7)
KINDS = (np.ndarray, SparseVector)
THIN = ArraySpec(np.float64, (5,), KINDS)
AGREED = ArraySpec(np.float64, (5,), (SparseVector,), count=2)
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
    ("value", "expected"),
    [
        (np.ones(4), MODEL),
        (np.ones((3, 1)), MODEL),
        (np.ones((2, 3)), OPEN),
        (np.ones(3, np.float32), MODEL),
        (np.ones(3, np.int64), MODEL),
        (np.array([1.0, np.nan, 0.0]), MODEL),
        (np.array([np.inf, 0.0, -np.inf]), MODEL),
        (sparse([1.0], 3), MODEL),
        (sparse([1.0], 6), THIN),
        (sparse([np.nan]), THIN),
        (sparse([1.0], dtype="float32"), THIN),
        (sparse([1.0]), AGREED),
        (sparse([1.0, 2.0, 3.0]), AGREED),
        (sparse([1.0, 2.0], 6), AGREED),
        (sparse([1.0, np.nan]), AGREED),
        (np.ones(5), AGREED),
        (1.0, MODEL),
        (np.ones(3), float),
        (sparse([1.0]), int),
        (np.ones(7), HIDDEN),
        (sparse([1.0]), HIDDEN),
        (1.0, HIDDEN),
        (encrypted(), MODEL),
        (encrypted(), THIN),
        (encrypted(), float),
        (encrypted(key_id=OTHER_KEY.id), HIDDEN),
        (encrypted(layout=LAYOUT.rescaled(1)), HIDDEN),
        (encrypted(count=8), HIDDEN),
        (encrypted(additions=3), HIDDEN),
        (encrypted(0), HIDDEN),
        (encrypted(KEY.n**2), HIDDEN),
        (True, int),
        (1, bool),
        (True, float),
        (1.0, int),
        ("1", int),
        (float("nan"), float),
        (float("-inf"), float),
        (float("nan"), NumberSpec()),
        (float("inf"), NumberSpec()),
        (1e308, NumberSpec(maximum=1e100)),
        (-1e-9, NumberSpec(minimum=0, hint="see the page")),
        (1234567, NumberSpec(int, maximum=1234566)),
        (0, NumberSpec(int, minimum=1)),
        (1.0, NumberSpec(int)),
        (True, NumberSpec()),
        (np.ones(3), NumberSpec()),
    ],
)
def test_anything_else_is_refused_and_the_error_says_from_whom(value: Value, expected: Expected) -> None:
    with raises(PayloadError, client="client-1, round 4", array="x"):
        check({"x": value}, {"x": expected}, client="client-1, round 4")


@pytest.mark.parametrize("names", [(), ("x",), ("y",), ("x", "y", "z")])
def test_no_name_may_be_missing_or_new(names: tuple[str, ...]) -> None:
    expectation: Expectation = {"x": float, "y": float}
    with raises(PayloadError, client="client-1"):
        check(dict.fromkeys(names, 1.0), expectation, client="client-1")


def test_names_that_somebody_else_chose_are_told_in_short() -> None:
    names = {"\x1b[31m\n" + "A" * 900_000: 1.0} | {f"name {number}": 1.0 for number in range(10_000)}
    with raises(PayloadError, client="client a") as caught:
        check(names, {"loss": float}, client="client a")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finite_values_whose_squares_overflow_are_finite(dtype: str) -> None:
    array = np.full(9, np.finfo(dtype).max, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_finite(array)
        array[7] = np.nan
        with raises(NotFiniteError):
            require_finite(array)


@given(
    array=st.sampled_from(["float16", "float32", "float64"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    )
)
def test_the_fast_check_agrees_with_numpy(array: np.ndarray) -> None:
    with nullcontext() if np.isfinite(array).all() else pytest.raises(NotFiniteError):
        require_finite(array)


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
    expected: Expectation = {"x": ArraySpec(np.dtype(dtype), (size,), KINDS), "y": np.zeros((2, 3)), "n": int}
    least, most = body_bounds(expected)
    assert most is not None
    for x in (thin, np.ones(size, dtype)):
        assert least <= encode({"x": x, "y": np.zeros((2, 3)), "n": 1}).size <= most


def test_the_size_of_a_payload_is_bounded_where_all_lengths_are() -> None:
    assert body_bounds({}) == body_bounds({"loss": float, "n": NumberSpec(int, 1)}) == (0, 0)
    assert body_bounds({"model": MODEL}) == (24, encode({"model": MODEL}).size)
    hidden = 2 * KEY.ciphertext_bytes + -2 * KEY.ciphertext_bytes % 8
    assert body_bounds({"hidden": HIDDEN}) == (hidden, hidden)
    assert body_bounds({"model": MODEL, "open": OPEN}) == (24, None)
    assert body_bounds({"model": MODEL, "bounded": BOUNDED}) == (24, 24 + encode({"x": np.ones((7, 2))}).size)
