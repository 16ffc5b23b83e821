"""The entries that are chosen are the ones that the definition says, ties and all."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fenchel.common.compression.sparsification import kept, public_top_k, top_k
from fenchel.common.errors import PayloadError
from fenchel.common.wire.index_sets import seeded_support
from tests.messages import raises

WITH_TIES = hnp.arrays(
    st.sampled_from(["float32", "float64", "float16"]), st.integers(1, 60), elements=st.integers(-3, 3).map(float)
)
ANY = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(allow_nan=False, allow_infinity=False, width=64))


@given(vector=st.one_of(WITH_TIES, ANY), part=st.floats(0, 1))
@example(vector=np.array([0.0, -2.0, 2.0, 1.0]), part=0.25)
@example(vector=np.zeros(5), part=0.4)
@example(vector=np.array([1e308, -1.7e308, 1e308]), part=0.3)
def test_the_largest_are_chosen_and_of_equal_ones_the_first(vector: np.ndarray, part: float) -> None:
    k = max(1, round(part * len(vector)))
    by_size = sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))
    assert top_k(vector, k).tolist() == sorted(by_size[:k])


def test_many_ties_in_a_long_vector() -> None:
    vector = np.random.default_rng(0).integers(-5, 6, 200_000).astype(np.float32)
    fives = np.flatnonzero(np.abs(vector) == 5)
    assert np.array_equal(top_k(vector, 20_000), fives[:20_000])
    fours = np.flatnonzero(np.abs(vector) == 4)
    expected = np.sort(np.concatenate([fives, fours[:1000]]))
    assert np.array_equal(top_k(vector, len(fives) + 1000), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_what_is_not_finite_is_refused(bad: float, k: int) -> None:
    vector = np.arange(10.0)
    vector[4] = bad
    with raises(PayloadError):
        top_k(vector, k)


@pytest.mark.parametrize("k", [0, -1, 11])
def test_numbers_of_entries_that_cannot_be_are_errors(k: int) -> None:
    with pytest.raises(ValueError):
        top_k(np.ones(10), k)
    with pytest.raises(ValueError):
        public_top_k(np.ones(10), k, 1)


@given(seed=st.integers(0, (1 << 64) - 1), vector=WITH_TIES, part=st.floats(0, 1))
def test_a_public_support_is_the_largest_entries_and_seeded_others(seed: int, vector: np.ndarray, part: float) -> None:
    k = max(1, round(part * len(vector)))
    first = int(Fraction(4, 5) * k + Fraction(1, 2))
    support = public_top_k(vector, k, seed)
    assert len(support) == k
    assert (np.diff(support) > 0).all()
    largest = top_k(vector, first)
    assert set(largest) <= set(support)
    rest = seeded_support(seed, len(vector), k - first, largest)
    assert set(support) - set(largest) == set(rest)


@pytest.mark.parametrize(
    ("alpha", "size", "k"),
    [(0.1, 7850, 785), (0.05, 7850, 393), (0.5, 162, 81), (0.1, 162, 16), (1.0, 7, 7), (1e-9, 7, 1), (0.5, 1, 1)],
)
def test_the_kept_entries_are_counted_as_the_specification_does(alpha: float, size: int, k: int) -> None:
    assert kept(alpha, size) == k


@pytest.mark.parametrize(("alpha", "size"), [(0.0, 5), (1.1, 5), (-0.5, 5), (float("nan"), 5), (0.5, 0)])
def test_a_fraction_that_is_none_is_an_error(alpha: float, size: int) -> None:
    with pytest.raises(ValueError):
        kept(alpha, size)
