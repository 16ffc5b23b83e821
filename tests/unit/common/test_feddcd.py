"""The scalars of acceleration, and what unequal clients make of the participation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fenchel.algorithms.feddcd.acc_feddcd import Acceleration, effective_participation
from fenchel.common.arrays import Dense, Vector

SCALES = st.lists(st.floats(0.05, 20.0), min_size=2, max_size=6)


def projection(members: tuple[int, ...], scales: Vector) -> Dense:
    """G_I: from the minimisers of all clients to the steps of their duals (specification, 1.4)."""
    weights = np.zeros(len(scales))
    weights[list(members)] = scales[list(members)]
    result: Dense = np.diag(weights) - np.outer(weights, weights) / weights.sum()
    return result


def spectrum(cohort: int, scales: Vector) -> Vector:
    """Return the eigenvalues of E[G_I] relative to G_[N], where I is uniform: n - 1 of them."""
    n = len(scales)
    sets = list(itertools.combinations(range(n), cohort))
    mean = np.sum([projection(members, scales) for members in sets], axis=0) / len(sets)
    # On the complement of constant vectors, where G_[N] is definite.
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    whole = basis.T @ projection(tuple(range(n)), scales) @ basis
    values: Vector = np.sort(np.linalg.eigvals(np.linalg.solve(whole, basis.T @ mean @ basis)).real)
    return values


def test_clients_unalike_participate_less_than_their_number_says() -> None:
    # Six clients, 1 / lambda_i between 1/4 and 1/0.3: the range of the specification's example.
    scales = 1 / np.linspace(0.3, 4, 6)
    bound, exact = effective_participation(3, scales.tolist()), spectrum(3, scales)
    assert bound == pytest.approx(0.248, abs=1e-3)
    assert bound < exact[0] < (3 - 1) / (6 - 1) < exact[-1]


@given(SCALES, st.integers(2, 6))
def test_it_is_below_what_every_direction_really_gets(scales: list[float], cohort: int) -> None:
    assume(cohort <= len(scales))
    least = spectrum(cohort, np.array(scales))[0]
    bound = effective_participation(cohort, scales)
    assert 0 < bound <= least + 1e-9


@given(SCALES, st.integers(2, 6))
def test_it_is_the_smallest_over_all_pairs(scales: list[float], cohort: int) -> None:
    n, total = len(scales), sum(scales)
    assume(n > 2 and cohort < n)
    share = cohort * (cohort - 1) / (n * (n - 1))
    ratios = [
        share * total / (a + b + (cohort - 2) / (n - 2) * (total - a - b)) for a, b in itertools.combinations(scales, 2)
    ]
    assert effective_participation(cohort, scales) == pytest.approx(min(ratios))


@given(st.integers(2, 50), st.integers(2, 50), st.floats(1e-3, 1e3))
def test_clients_alike_have_the_participation_of_the_paper(n: int, cohort: int, scale: float) -> None:
    assume(cohort <= n)
    assert effective_participation(cohort, [scale] * n) == pytest.approx((cohort - 1) / (n - 1))


@given(SCALES)
def test_everybody_is_everybody(scales: list[float]) -> None:
    assert effective_participation(len(scales), scales) == 1
    assert effective_participation(1, [3.0]) == 1


@given(st.floats(0.01, 1.0), st.floats(1e-6, 1.0))
def test_the_scalars_are_those_of_the_paper(r: float, conditioning: float) -> None:
    scalars, q = Acceleration.of(r, conditioning), np.sqrt(conditioning)
    assert scalars.a == pytest.approx(q / (1 / r + q))
    assert scalars.b == pytest.approx(conditioning * scalars.a * r**2)
    # Two forms of theta, and 1 - a from which the rate comes.
    assert scalars.theta == pytest.approx((1 - scalars.a) / (q * (1 - scalars.a + scalars.a**2)))
    assert (scalars.a**2 + scalars.b) / r**2 == pytest.approx(conditioning * (1 - scalars.a + scalars.a**2))
    assert 0 < scalars.a <= 0.5
    assert 0 < scalars.decay < 1
