"""The theorems of docs/specifications/feddcd.md, on many random runs of the independent implementation.

That the runs of the real thing are the same is shown in ``test_feddcd_quadratics.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from fenchel.common.arrays import Dense, Vector
from tests.algorithms.feddcd_oracle import Momentum, Quadratics, accelerated_round, center_of, feddcd_round, memberships

ALPHA, BETA = 1.0, 12.0
RUNS, ROUNDS = 1500, 40
PROBLEM = Quadratics.random(alpha=ALPHA, beta=BETA)
CLIENTS = len(PROBLEM.centers)
SCALES = np.full(CLIENTS, ALPHA)
OPTIMAL = PROBLEM.optimal_duals
START_GAP = float(PROBLEM.gap(PROBLEM.zeros))
SIZES = [2, 3, 6]


def participation(size: int) -> float:
    return (size - 1) / (CLIENTS - 1)


def distances(w: Dense) -> Vector:
    """(1/N) sum_i ||w_i - w*||^2, one for each run."""
    squares: Vector = ((w - PROBLEM.optimum) ** 2).sum(axis=-1).mean(axis=-1)
    return squares


def many_zeros() -> Dense:
    return np.zeros((RUNS, *PROBLEM.centers.shape))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("eta", [1.0, 0.4, 1.7])
def test_feddcd_converges_as_fast_as_the_theorem_says(size: int, eta: float) -> None:
    chance, y = np.random.default_rng(size), many_zeros()
    factor = 1 - participation(size) * eta * (2 - eta) * ALPHA / BETA
    for t in range(ROUNDS + 1):
        gaps, w = PROBLEM.gap(y), PROBLEM.minimisers(y)
        assert gaps.mean() <= factor**t * START_GAP * (1 + 1e-9)
        assert distances(w).mean() <= 2 / (CLIENTS * ALPHA) * factor**t * START_GAP * (1 + 1e-9)
        y, _ = feddcd_round(w, y, memberships(chance, RUNS, CLIENTS, size), SCALES, eta)
    assert gaps.mean() < 0.9 * START_GAP, "so it moved at all"


@pytest.mark.parametrize("eta", [0.1, 1.0, 1.99])
def test_the_dual_objective_falls_in_every_round_whoever_takes_part(eta: float) -> None:
    # With constants and scales of their own, and cohorts of any size.
    factors = np.array([1, 2, 0.5, 1, 4, 1.5])
    problem = Quadratics(PROBLEM.curvatures * factors.reshape(6, 1, 1), PROBLEM.centers)
    scales, chance, y = ALPHA * factors, np.random.default_rng(0), many_zeros()
    for t in range(60):
        active = memberships(chance, RUNS, CLIENTS, 2 + t % 5)
        w = problem.minimisers(y)
        apart = ((w - center_of(w, active, scales)[:, None, :]) ** 2).sum(axis=-1)
        promised = eta * (1 - eta / 2) * (active * scales * apart).sum(axis=-1)
        before = problem.dual(y)
        y, center = feddcd_round(w, y, active, scales, eta)
        assert (problem.dual(y) <= before - promised + 1e-11).all()
        assert (problem.value(center) + problem.dual(y) >= -1e-11).all(), "weak duality"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("delta", [0.25, 0.05])
def test_inexact_solves_keep_the_rate_of_the_corrected_theorem(size: int, delta: float) -> None:
    chance, y = np.random.default_rng(size), many_zeros()
    kept = np.zeros_like(y)
    factor = 1 - participation(size) * ALPHA / (16 * BETA)
    start = START_GAP + ALPHA / 8 * float((PROBLEM.minimisers(PROBLEM.zeros) ** 2).sum())
    for t in range(ROUNDS + 1):
        exact = PROBLEM.minimisers(y)
        potential = PROBLEM.gap(y) + ALPHA / 8 * ((kept - exact) ** 2).sum(axis=(-2, -1))
        assert potential.mean() <= factor**t * start * (1 + 1e-9)
        assert distances(kept).mean() <= 16 / (CLIENTS * ALPHA) * factor**t * start
        active = memberships(chance, RUNS, CLIENTS, size)
        solved = exact + np.sqrt(delta) * (kept - exact)  # the worst that the oracle may answer
        kept = np.where(active[..., None] > 0, solved, kept)
        y, _ = feddcd_round(kept, y, active, SCALES, eta=0.25)
    assert PROBLEM.gap(y).mean() < 0.9 * START_GAP


@pytest.mark.parametrize("two", [False, True], ids=["one cohort", "two cohorts"])
@pytest.mark.parametrize("size", SIZES)
def test_acceleration_keeps_the_corrected_rate_with_one_cohort_as_with_two(size: int, two: bool) -> None:
    chance = np.random.default_rng(size)
    r = participation(size)
    momentum = Momentum(r, ALPHA / BETA)
    weight = (momentum.a**2 + momentum.b) / (2 * r**2 * ALPHA)
    y = z = many_zeros()
    start = START_GAP + weight * float((OPTIMAL**2).sum())
    square = float((OPTIMAL**2).sum())
    for t in range(ROUNDS + 1):
        factor = (1 - momentum.a) ** t
        potential = PROBLEM.gap(y) + weight * ((z - OPTIMAL) ** 2).sum(axis=(-2, -1))
        assert potential.mean() <= factor * start * (1 + 1e-9)
        assert PROBLEM.gap(y).mean() <= 2 * factor * START_GAP
        assert distances(PROBLEM.minimisers(y)).mean() <= 2 / (CLIENTS * ALPHA**2) * factor * square
        first = memberships(chance, RUNS, CLIENTS, size)
        second = memberships(chance, RUNS, CLIENTS, size) if two else None
        y, z, _ = accelerated_round(PROBLEM.minimisers, y, z, first, second, SCALES, momentum)
    plain, chance = many_zeros(), np.random.default_rng(size)
    for _ in range(ROUNDS + 1):
        active = memberships(chance, RUNS, CLIENTS, size)
        plain, _ = feddcd_round(PROBLEM.minimisers(plain), plain, active, SCALES)
    assert PROBLEM.gap(y).mean() < 0.5 * PROBLEM.gap(plain).mean(), "faster than without acceleration"


def test_the_printed_theorem_on_acceleration_lacks_a_factor() -> None:
    # Specification, 5.3: two clients whose curvature is beta, though alpha is taken to be a hundredth of it.
    problem = Quadratics(np.full((2, 1, 1), 100.0), np.array([[1.0], [-1.0]]))
    momentum, everybody = Momentum(1.0, 0.01), np.ones(2)
    y = z = problem.zeros
    ratios = []
    for t in range(1, 60):
        y, z, _ = accelerated_round(problem.minimisers, y, z, everybody, None, np.ones(2), momentum)
        ratios.append(float(problem.gap(y) / problem.gap(problem.zeros)) / (1 - momentum.a) ** t)
    assert ratios[6] == pytest.approx(1.29, abs=0.005)
    assert max(ratios) <= 2
