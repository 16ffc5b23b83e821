"""The discrete Gaussian sampler: exact probabilities, whatever decides them."""

from __future__ import annotations

from fractions import Fraction

import gmpy2
import numpy as np
import pytest
from scipy import stats

from fenchel.client.privacy.discrete_gaussian import LARGEST_SCALE, _Acceptance, discrete_gaussian

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CERTAIN = 1e9
"""A margin within which everything lies: each proposal is decided in exact arithmetic."""


@pytest.mark.parametrize("scale", [1.0, 1.3, 1.999, 2.0, 4.7, 16.0])
def test_each_integer_has_its_probability(scale: float) -> None:
    most, count = int(3 * scale), 400_000
    integers = np.arange(-40 * most, 40 * most + 1)
    weights = np.exp(-0.5 * (integers / scale) ** 2)
    expected = np.bincount(np.clip(integers, -most, most) + most, count * weights / weights.sum())
    drawn = discrete_gaussian(KEY, scale, count)
    found = np.bincount(np.clip(drawn, -most, most) + most)  # at both ends all that is beyond
    assert stats.chisquare(found, expected).pvalue > 1e-4


@pytest.mark.parametrize("scale", [1000.3, 2.0**20, 1.9 * 2.0**30, LARGEST_SCALE])
def test_many_steps_make_it_the_normal_distribution(scale: float) -> None:
    drawn = discrete_gaussian(KEY, scale, 400_000) / scale
    m = drawn.size
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert abs(drawn.mean()) < 4 / np.sqrt(m)
    assert abs(drawn.var() - 1) < 4 * np.sqrt(2 / m)
    assert abs(np.mean(drawn[1:] * drawn[:-1])) < 4 / np.sqrt(m)
    for level in (3.0, 4.0):
        expected = 2 * m * float(stats.norm.sf(level))
        assert abs((np.abs(drawn) > level).sum() - expected) < 4 * np.sqrt(expected)


@pytest.mark.parametrize("scale", [1.0, 3.3, 1024.7, 2.0**40, LARGEST_SCALE])
def test_floating_point_numbers_decide_as_exact_arithmetic_does(scale: float) -> None:
    """So what is drawn depends on the key alone, and has exactly its probability."""
    assert np.array_equal(discrete_gaussian(KEY, scale, 2000), discrete_gaussian(KEY, scale, 2000, margin=CERTAIN))


def test_a_uniform_number_that_lies_near_its_threshold_gets_more_bits() -> None:
    """With the threshold itself as its first bits, those that follow decide, by their exact share."""
    scale, magnitude = 3.0, 4
    exponent = Fraction(-magnitude * magnitude) / (2 * Fraction(scale) ** 2)
    trials = 300
    acceptance = _Acceptance(KEY, scale)
    with gmpy2.context(precision=300):
        threshold = gmpy2.exp(gmpy2.mpfr(gmpy2.mpq(exponent))) * gmpy2.mpfr(2) ** (64 + magnitude // 2)
        threshold /= gmpy2.mpfr(acceptance.bound)
        word, share = int(gmpy2.floor(threshold)), float(threshold - gmpy2.floor(threshold))
    assert acceptance.shift == 1
    assert all(acceptance.decide(number, magnitude, word - 1) for number in range(9))
    assert not any(acceptance.decide(number, magnitude, word + 1) for number in range(9))
    accepted = sum(acceptance.decide(number, magnitude, word) for number in range(trials))
    assert abs(accepted - share * trials) < 4 * np.sqrt(trials * share * (1 - share))


def test_more_begin_with_the_same_and_another_key_gives_others() -> None:
    scale = 2.0**20
    many = discrete_gaussian(KEY, scale, 100_000)
    assert many.dtype == np.int64
    assert discrete_gaussian(KEY, scale, 10).tolist() == many[:10].tolist()
    assert discrete_gaussian(KEY, scale, 0).shape == (0,)
    assert not np.array_equal(discrete_gaussian(OTHER, scale, 100), many[:100])


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0, float("nan"), float("inf"), 2 * LARGEST_SCALE])
def test_other_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError):
        discrete_gaussian(KEY, scale, 1)
