"""Noise on a grid: what it costs, and that accountants of the Gaussian distribution cover it."""

from __future__ import annotations

import math

import gmpy2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.client.privacy.discrete_gaussian import LARGEST_SCALE
from fenchel.common.accounting.gaussian import profile
from fenchel.common.accounting.grid import LARGEST_DEVIATION, SMALLEST_DEVIATION, SMOOTHING, GridNoise

Array = NDArray[np.float64]


@given(sensitivity=st.floats(1e-100, 1e100), multiplier=st.floats(1e-3, 1e6), count=st.integers(1, 10**8))
@example(sensitivity=0.1, multiplier=1e6, count=10**8)
@example(sensitivity=0.1, multiplier=1e-3, count=1)
def test_the_noise_covers_the_grid_and_is_hardly_more(sensitivity: float, multiplier: float, count: int) -> None:
    grid = GridNoise.covering(sensitivity, multiplier, count)
    assert math.frexp(grid.spacing)[0] == 0.5, "a power of two"
    assert 2.0**10 <= grid.scale <= LARGEST_SCALE
    covered = sensitivity + grid.spacing * math.sqrt(count)
    assert (grid.scale**2 - SMOOTHING**2) ** 0.5 * grid.spacing >= multiplier * covered * (1 - 1e-12)
    assert grid.scale * grid.spacing <= 1.001 * multiplier * sensitivity


@given(seed=st.integers(0, 2**32 - 1), multiplier=st.floats(0.01, 100), count=st.integers(1, 1000))
def test_rounding_moves_neighbours_apart_by_no_more_than_is_counted(seed: int, multiplier: float, count: int) -> None:
    random = np.random.default_rng(seed)
    sensitivity = 0.01
    grid = GridNoise.covering(sensitivity, multiplier, count)
    one = random.normal(size=count)
    direction = random.normal(size=count)
    other = one + direction * (sensitivity / np.linalg.norm(direction))
    rounded = grid.values(grid.integers(one)), grid.values(grid.integers(other))
    assert np.abs(rounded[0] - one).max() <= grid.spacing / 2
    moved = float(np.linalg.norm(rounded[0] - rounded[1]))
    assert moved <= (sensitivity + grid.spacing * math.sqrt(count)) * (1 + 1e-9)


def test_rounding_moves_the_worst_neighbours_as_far_as_that() -> None:
    grid = GridNoise(2.0**-10, 2.0**12)
    one, other = np.full(100, 0.499), np.full(100, 0.501)
    moved = np.abs(grid.integers(one * grid.spacing) - grid.integers(other * grid.spacing))
    assert (moved == 1).all()
    assert np.linalg.norm(moved) > 0.99 * (np.linalg.norm(other - one) + np.sqrt(100)) - 0.1


def divergence(scale: float, shift: int, epsilon: float) -> float:
    """The smallest delta of the discrete Gaussian mechanism, by its definition."""
    most = int(40 * scale) + shift
    integers = np.arange(-most, most + 1)
    own, other = (np.exp(-0.5 * ((integers - centre) / scale) ** 2) for centre in (shift, 0))
    return float(np.maximum(0.0, own / own.sum() - math.exp(epsilon) * other / other.sum()).sum())


@pytest.mark.parametrize("deviation", [1.0, 2.0, 4.0, 16.0])
@pytest.mark.parametrize("shift", [1, 2, 5, 8])
def test_the_profile_of_the_gaussian_covers_the_discrete_one_for_the_share_that_is_smoothed(
    deviation: float, shift: int
) -> None:
    levels = np.linspace(0, 4 * shift / deviation, 200)
    claimed = profile(deviation / shift, levels)
    levels, claimed = levels[claimed > 1e-10], claimed[claimed > 1e-10]
    found = np.array([divergence(math.hypot(deviation, SMOOTHING), shift, level) for level in levels])
    assert (found <= claimed * (1 + 1e-4)).all()
    alike = np.array([divergence(deviation, shift, level) for level in levels])
    assert (alike > claimed * (1 + 1e-3)).any(), "with as much noise as the Gaussian it would not"


@pytest.mark.parametrize("deviation", [3, 5])
def test_a_gaussian_that_is_rounded_at_random_is_the_discrete_gaussian_but_for_a_tiny_factor(deviation: int) -> None:
    """By integration with 60 digits; the rule of equal steps errs by less than exp(-2 pi² 64)."""
    with gmpy2.context(precision=250):
        steps, smoothing = 16, gmpy2.mpfr(SMOOTHING)

        def bell(x: gmpy2.mpfr, width: gmpy2.mpfr) -> gmpy2.mpfr:
            return gmpy2.exp(-x * x / (2 * width * width))

        sums = [sum(bell(j - gmpy2.mpfr(i) / steps, smoothing) for j in range(-40, 41)) for i in range(steps)]

        def rounded(y: int) -> gmpy2.mpfr:
            points = [(i, gmpy2.mpfr(i) / steps) for i in range(-30 * deviation * steps, 30 * deviation * steps)]
            masses = [bell(x, gmpy2.mpfr(deviation)) * bell(y - x, smoothing) / sums[i % steps] for i, x in points]
            return sum(masses) / (steps * deviation * gmpy2.sqrt(2 * gmpy2.const_pi()))

        scale = gmpy2.sqrt(gmpy2.mpfr(deviation) ** 2 + smoothing**2)
        normalizer = sum(bell(gmpy2.mpfr(j), scale) for j in range(-200, 201))
        for y in (0, 1, 4):
            factor = rounded(y) * normalizer / bell(gmpy2.mpfr(y), scale)
            assert abs(float(factor - 1)) < 3e-34


def test_the_grid_looks_at_no_values_and_holds_them_all() -> None:
    grid = GridNoise.covering(1e-6, 1.0, 10**6)
    values = np.array([1e3, -1e3, 0.0, 0.3, 1e-30])
    points = grid.values(grid.integers(values))
    assert np.abs(points - values).max() <= grid.spacing / 2
    assert grid.integers(values.astype(np.float32)).dtype == np.int64


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, -1e30])
def test_values_beyond_all_integers_are_refused(value: float) -> None:
    grid = GridNoise.covering(0.1, 1.0, 2)
    with pytest.raises(ValueError):
        grid.integers(np.array([0.0, value]))


@pytest.mark.parametrize(
    ("sensitivity", "multiplier"),
    [
        *((1e-321, 1.0), (1e-200, 1e-100), (0.0, 1.0), (math.inf, 1.0), (math.nan, 1.0), (1e305, 1e3)),
        (SMALLEST_DEVIATION / 2, 1.0),
        (2 * LARGEST_DEVIATION, 1.0),
    ],
)
def test_noise_that_numbers_cannot_hold_is_refused(sensitivity: float, multiplier: float) -> None:
    with pytest.raises(ValueError):
        GridNoise.covering(sensitivity, multiplier, 10)


@pytest.mark.parametrize("deviation", [1.001 * SMALLEST_DEVIATION, 0.999 * LARGEST_DEVIATION])
@pytest.mark.parametrize("multiplier", [1e-3, 1.0, 1e6])
def test_all_other_noise_has_a_grid_of_normal_numbers(deviation: float, multiplier: float) -> None:
    grid = GridNoise.covering(deviation / multiplier, multiplier, 10**8)
    assert grid.spacing >= np.finfo(np.float64).tiny
    assert np.isfinite(grid.values(np.array([int(64 * grid.scale)])))
