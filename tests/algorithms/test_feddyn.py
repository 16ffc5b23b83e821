"""FedDyn: its formulas written without any machinery, its optimum, and an h that is the mean of all lambda_i."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.randomness import generator
from tests.algorithms.mlr import SETS, Problem, reproducible, train
from tests.messages import raises

FULL = {"local_steps": 5, "batch_size": None, "step_size": 0.3, "weighting": "uniform"}
SEED = 3
GAMMA = 0.05


def feddyn(**keys: Any) -> dict[str, Any]:
    return {"name": "feddyn", **keys}


def simulated(
    problem: Problem, algorithm: dict[str, Any], cohorts: Sequence[Sequence[int]]
) -> tuple[Vector, Vector, list[Vector]]:
    """Return x, h and all lambda_i of the table in section 2.8 of the specification."""
    alpha, eta = algorithm["alpha"], algorithm["step_size"]
    x: Vector = np.zeros(9)
    h: Vector = np.zeros(9)
    duals: list[Vector] = [np.zeros(9) for _ in problem.shards]
    for t, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            f, w = problem.objectives[i], x.copy()
            batches = f.batches(
                generator(SEED, f"client-00{i}", t, "batches"),
                steps=algorithm["local_steps"],
                batch_size=algorithm["batch_size"],
            )
            for batch in batches:
                g = problem.weights[i] * f.batch_gradient(w, batch)
                w = w - eta * (g - duals[i] + alpha * (w - x))
            duals[i] = duals[i] - alpha * (w - x)
            ends.append(w)
        h = h - alpha / problem.clients * sum(end - x for end in ends)
        x = np.mean(ends, axis=0) - h / alpha
    return x, h, duals


@settings(max_examples=10, deadline=None)
@given(
    cohorts=st.lists(st.sets(st.integers(0, 3), min_size=1).map(sorted), min_size=2, max_size=4),
    alpha=st.floats(0.05, 2),
    steps=st.integers(1, 4),
    batch_size=st.sampled_from([None, 2]),
    weighting=st.sampled_from(["samples", "uniform"]),
)
def test_runs_are_those_of_the_formulas(
    cohorts: list[list[int]],
    alpha: float,
    steps: int,
    batch_size: int | None,
    weighting: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    problem = reproducible(weighted=weighting == "samples")
    algorithm = feddyn(alpha=alpha, local_steps=steps, batch_size=batch_size, step_size=0.3, weighting=weighting)
    folder = tmp_path_factory.mktemp("run")
    run = train(problem, folder, algorithm, cohorts=cohorts, rounds=len(cohorts), seed=SEED)
    x, h, duals = simulated(problem, algorithm, cohorts)
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.states[len(cohorts)].mean_dual, h, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.client_states("dual"), duals, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_everybody_together_reaches_the_optimum_where_fedavg_does_not(tmp_path: Path) -> None:
    problem = reproducible(weighted=True)
    steps = {"local_steps": 5, "batch_size": None, "step_size": 0.5}
    run = train(problem, tmp_path, feddyn(**steps, alpha=0.2), rounds=150)
    average = train(problem, tmp_path, {"name": "fedavg", **steps}, rounds=150)
    assert np.abs(run.model - problem.optimum).max() < 1e-7
    assert np.abs(average.model - problem.optimum).max() > 1e-2
    for f, p, dual in zip(problem.objectives, problem.weights, run.client_states("dual"), strict=True):
        np.testing.assert_allclose(dual, p * f.gradient(problem.optimum), atol=1e-6)


def with_l1(problem: Problem) -> Vector:
    """The minimiser of F / N + gamma ||x||_1, as a smooth problem in the positive and negative parts."""

    def value(z: Vector) -> float:
        return problem.value(z[:9] - z[9:]) / problem.clients + GAMMA * float(z.sum())

    def slope(z: Vector) -> Vector:
        g = problem.gradient(z[:9] - z[9:]) / problem.clients
        return np.concatenate([g, -g]) + GAMMA

    found = minimize(
        value,
        np.zeros(18),
        jac=slope,
        method="L-BFGS-B",
        bounds=[(0, None)] * 18,
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 10_000},
    )
    result: Vector = found.x[:9] - found.x[9:]
    return result


@pytest.mark.slow
def test_the_proximal_operator_of_the_server_finds_the_sparse_optimum(tmp_path: Path) -> None:
    problem = reproducible()
    optimum = with_l1(problem)
    assert 0 < np.count_nonzero(np.abs(optimum) < 1e-9) < 9
    sections: dict[str, Any] = {
        "rounds": 300,
        "objective": {"kind": "softmax", "l2": 0.1, "regularizer": {"kind": "l1", "weight": GAMMA}},
    }
    steps = FULL | {"alpha": 0.3}
    run = train(problem, tmp_path, feddyn(**steps, regularizer_step="server-prox"), **sections)
    np.testing.assert_allclose(run.model, optimum, rtol=0, atol=1e-6)
    assert np.count_nonzero(run.model) == np.count_nonzero(np.abs(optimum) > 1e-9)
    along = train(problem, tmp_path, feddyn(**steps), **sections)
    assert np.count_nonzero(along.model) == 9, "subgradients give no zeros"
    assert np.abs(along.model - optimum).max() < 0.05


def test_the_cost_is_one_model_down_and_one_up(tmp_path: Path) -> None:
    run = train(reproducible(), tmp_path, feddyn(**FULL), cohorts=SETS)
    assert run.floats() == (8 * 9, 8 * 9)


def test_steps_that_diverge_are_refused(tmp_path: Path) -> None:
    with raises(SettingsError, key="algorithm", source="settings"):
        reproducible().settings(tmp_path, feddyn(**FULL, alpha=7))
