"""FedPDM does what its corrected theory says: descent with exact solves, and a bound with noise and inexact ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fenchel.common.arrays import Dense, Vector
from tests.algorithms.fedpdm_oracle import Landscape, Variant
from tests.algorithms.fedpdm_runs import EVERYBODY, iterates_of, landscape_of, real, smoothness_of, watched
from tests.algorithms.mlr import reproducible
from tests.slow import rest_slow

BETA, GAMMA = 0.15, 0.02


def test_with_exact_solves_the_lagrangian_descends_and_bounds_what_the_theory_says(tmp_path: Path) -> None:
    problem, rounds = reproducible(), 60
    smoothness = smoothness_of(problem, BETA)
    rho = 2.5 * smoothness
    variant = Variant(penalty=rho, step_size=1 / rho, steps=60, gamma=GAMMA, beta=BETA)
    with watched() as solves:
        run = real(problem, variant, tmp_path, [EVERYBODY] * rounds)
    land, clients = landscape_of(problem, variant), problem.clients
    iterates = iterates_of(run, solves, rho)
    assert max(slack for at in iterates for slack in slacks(land, at.local, at.duals)) < 1e-20
    lagrangian = [land.lagrangian(at) for at in iterates]
    c2 = (rho - smoothness) / 2 - smoothness**2 / rho
    assert c2 > 0
    kap = clients * (1 + rho**2) * max(4 / rho, 2 * smoothness**2 / (rho**2 * c2))
    lowest = min(land.objective(at.model) for at in iterates)
    for now, after, before, later in zip(iterates[:-1], iterates[1:], lagrangian[:-1], lagrangian[1:], strict=True):
        assert before >= land.objective(now.model) - 1e-12
        drop = rho / 2 * float(np.sum((after.model - now.model) ** 2))
        drop += c2 / clients * float(np.sum((after.local - now.local) ** 2))
        assert later <= before - drop + 1e-12
        assert land.measure(after) <= kap * (before - later) + 1e-12 * kap
        slopes, gaps, server = land.residuals(after)
        bound = rho * server + float((slopes + (2 * rho + smoothness) * gaps).sum()) / clients
        assert np.linalg.norm(land.gradient_map(after.model)) <= bound + 1e-12
    measures = [land.measure(at) for at in iterates[1:]]
    assert np.mean(measures) <= kap * (lagrangian[0] - lowest) / len(measures)
    assert measures[0] > 1e-6
    assert measures[-1] < 1e-4 * measures[0], "it converges"


def slacks(land: Landscape, local: Dense, duals: Dense) -> list[float]:
    """How far each local solve was from exact: ``||grad f_i(x_i) - lambda_i||^2``, where lambda_i is the new one."""
    errors = [gradient(x) - dual for gradient, x, dual in zip(land.gradients, local, duals, strict=True)]
    return [float(e @ e) for e in errors]


def minimised(land: Landscape) -> Vector:
    """Where proximal gradient steps on F lead."""
    x: Vector = np.zeros(9)
    for _ in range(400):
        x = x - land.gradient_map(x) / land.penalty
    return x


@pytest.mark.parametrize("factor", rest_slow([4, 8]))
@pytest.mark.parametrize("sigma", rest_slow([0.0, 0.02, 0.1]))
def test_with_noise_and_inexact_solves_the_mean_measure_is_bounded(sigma: float, factor: int, tmp_path: Path) -> None:
    problem, rounds, seeds = reproducible(), 40, range(2)
    smoothness = smoothness_of(problem, BETA)
    rho = factor * smoothness
    variant = Variant(
        penalty=rho, step_size=0.5 / rho, steps=3, batch_size=3, gamma=GAMMA, beta=BETA, noise=sigma or None
    )
    land, clients, d = landscape_of(problem, variant), problem.clients, 9
    lowest = land.objective(minimised(land))
    measures, errors, first = [], [], []
    for seed in seeds:
        with watched() as solves:
            run = real(problem, variant, tmp_path, [EVERYBODY] * rounds, seed=seed)
        iterates = iterates_of(run, solves, rho)
        measures.append(np.mean([land.measure(at) for at in iterates[1:]]))
        errors.append([slacks(land, at.local, at.duals) for at in iterates])
        first.append(land.lagrangian(iterates[0]))
    nu = float(np.mean(errors, axis=0).max())
    assert nu > 1e-5, "solves are not exact"
    c3 = rho / 2 - smoothness - 2 * smoothness**2 / rho
    assert c3 > 0
    kap = clients * (1 + 2 * rho**2) * max(4 / rho, 4 * smoothness**2 / (rho**2 * c3))
    start = (float(np.mean(first)) - lowest + nu / (2 * (rho - smoothness))) / (rounds - 1)
    bound = kap * (start + (1 / (2 * smoothness) + 8 / rho) * nu + rho * d * sigma**2 / clients)
    bound += clients * (2 + 16 * (1 + 2 * rho**2) / rho**2) * nu + d * sigma**2 / clients
    assert 1e-4 * bound < np.mean(measures) <= bound
    if sigma:  # and noise is what it is made of: the server's residual alone is at least its mean square
        assert np.mean(measures) > 0.5 * d * sigma**2 / clients
