"""SCAFF-PD: the formulas, its equilibrium, and the robust optimum."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from fenchel.common.arrays import Dense, Vector
from fenchel.common.errors import SettingsError
from fenchel.common.randomness import generator
from fenchel.deploy.launch.names import client_names
from tests.algorithms.drdm_oracle import (
    Q1,
    Q1_ROBUST,
    Q1_WEIGHTS,
    Floats,
    ScaffPDConstants,
    gap,
    pinned,
    scaff_pd,
    simplex,
)
from tests.algorithms.drdm_runs import SEED
from tests.algorithms.feddcd_quadratics import problem_of, train_quadratics
from tests.algorithms.mlr import SETS, Problem, reproducible, train
from tests.messages import raises

EXACT: dict[str, Any] = {"name": "scaff-pd", "step_size": 0.05, "local_steps": 10, "batch_size": None}


@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize("theta", [0.0, 1.0])
def test_with_everybody_runs_are_those_of_the_independent_implementation(
    rho: float, theta: float, tmp_path: Path
) -> None:
    algorithm = {**EXACT, "dual_step_size": 0.05, "concavity": rho, "extrapolation": theta, "server_step_size": 0.8}
    run = train_quadratics(problem_of(pinned()), tmp_path, algorithm, rounds=12)
    constants = ScaffPDConstants(0.05, 10, 0.05, theta, 0.8, rho)
    steps = itertools.islice(scaff_pd(pinned(), constants), 12)
    for (x, weights), t in zip(steps, sorted(run.states), strict=True):
        np.testing.assert_allclose(run.states[t].model, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(run.states[t].weights, weights, rtol=0, atol=1e-12)
    assert run.floats() == (2 * 6 * 4 * 12, 2 * 6 * 4 * 12)


def simulated(problem: Problem, algorithm: Mapping[str, Any], cohorts: Sequence[Sequence[int]]) -> Any:
    """Return x and lambda, with cohorts and mini-batches, written without any machinery."""
    names, sigma = client_names(4), algorithm["dual_step_size"]
    x: Vector = np.zeros(9)
    lam: Floats = np.full(4, 0.25)
    known: dict[int, float] = {}
    for t, cohort in enumerate(cohorts, 1):
        told = {i: problem.objectives[i].loss(x) for i in cohort}
        s = np.zeros(4)
        for i in range(4):
            now = told.get(i, known.get(i, 0.0))
            s[i] = 2 * now - known.get(i, now)
        known |= told
        lam = simplex(lam + sigma * s)
        times = Counter(cohort)
        share = {i: n * lam[i] / sum(lam[j] for j in cohort) for i, n in times.items()}
        slopes: dict[int, Dense] = {i: problem.objectives[i].gradient(x) for i in cohort}
        mean = sum((share[i] * slopes[i] for i in times), np.zeros(9))
        step = np.zeros(9)
        for i in times:
            u, f = x, problem.objectives[i]
            draws = generator(SEED, names[i], t, "batches")
            for _ in range(algorithm["local_steps"]):
                rows = draws.choice(f.samples, algorithm["batch_size"], replace=False)
                u = u - algorithm["step_size"] * (f.batch_gradient(u, rows) - slopes[i] + mean)
            step = step + share[i] * (u - x)
        x = x + step
    return x, lam


@pytest.mark.parametrize("cohorts", [SETS, ((0, 0, 1), (2, 3, 3), (1, 2, 2))], ids=["once", "repeatedly"])
def test_with_cohorts_lambda_is_renormalised_and_losses_are_remembered(
    cohorts: Sequence[Sequence[int]], tmp_path: Path
) -> None:
    """Who was drawn twice counts twice."""
    algorithm = {"name": "scaff-pd", "step_size": 0.3, "local_steps": 4, "batch_size": 2, "dual_step_size": 0.05}
    run = train(reproducible(), tmp_path, algorithm, cohorts=cohorts, rounds=7, seed=SEED)
    x, lam = simulated(reproducible(), algorithm, [cohorts[t % len(cohorts)] for t in range(7)])
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.states[7].weights, lam, rtol=0, atol=1e-12)
    assert np.abs(lam - 0.25).max() > 0.05


@pytest.mark.slow
def test_runs_end_at_the_saddle_point(tmp_path: Path) -> None:
    run = train_quadratics(problem_of(Q1), tmp_path, {**EXACT, "dual_step_size": 0.05}, rounds=150)
    np.testing.assert_allclose(run.model, [Q1_ROBUST], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.states[150].weights, Q1_WEIGHTS, rtol=0, atol=1e-9)
    gaps = [gap(Q1, run.states[t].model, run.states[t].weights) for t in (1, 30, 60)]
    assert gaps[0] > 1
    assert gaps[0] / 10 > gaps[1] > 100 * gaps[2]


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    losses=st.lists(st.floats(0, 5), min_size=4, max_size=4),
    sigma=st.floats(0.01, 1),
    rho=st.floats(0, 2),
)
def test_the_dual_step_of_the_oracle_is_the_maximiser(
    weights: list[float], losses: list[float], sigma: float, rho: float
) -> None:
    """argmax <s, lambda> - (rho/2) ||lambda - 1/N||^2 - ||lambda - lambda^r||^2 / (2 sigma), by a general solver."""
    start, s = np.array(weights) / sum(weights), np.array(losses)

    def value(point: Vector) -> float:
        return float(-s @ point + rho / 2 * ((point - 0.25) ** 2).sum() + ((point - start) ** 2).sum() / (2 * sigma))

    ours = simplex((start / sigma + rho / 4 + s) / (1 / sigma + rho))
    found = minimize(
        value,
        start,
        method="SLSQP",
        bounds=[(0, 1)] * 4,
        constraints=LinearConstraint(np.ones(4), 1, 1),
        options={"ftol": 1e-14},
    )
    assert value(ours) <= value(found.x) + 1e-9


def test_a_client_that_answers_once_is_extrapolated_from_there(tmp_path: Path) -> None:
    """Who reports for the first time has q^{r-1} = q^r, as everybody has in the first round."""
    algorithm = {"name": "scaff-pd", "local_steps": 1, "batch_size": None, "dual_step_size": 0.05}
    run = train(reproducible(), tmp_path, algorithm, cohorts=[(0, 1), (0, 1, 2)], rounds=2, seed=SEED)
    problem = reproducible()
    known = run.states[1]
    assert np.isnan(known.losses).tolist() == [False, False, True, True]
    now = np.array([f.loss(known.model) for f in problem.objectives])
    s = np.array([*(2 * now[:2] - known.losses[:2]), now[2], 0])
    np.testing.assert_allclose(run.states[2].weights, simplex(known.weights + 0.05 * s), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "keys",
    [
        {"dual_step_size": 0, "concavity": 0.5},
        {"dual_step_size": 0, "extrapolation": 0.5},
        {"dual_step_size": 1e308},
        {"extrapolation": 1e308},
        {"concavity": 1e308},
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, source="settings"):
        reproducible().settings(tmp_path, {"name": "scaff-pd", **keys})
