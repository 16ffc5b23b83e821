"""FedAvg, FedProx, FedNova and mini-batch SGD: their formulas in plain loops, and where they lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from tests.algorithms.mlr import BATCHES, SETS, Problem, drawn, locally, reproducible, train

FULL = {"local_steps": 5, "batch_size": None, "step_size": 0.2, "weighting": "uniform"}


def test_the_data_are_those_of_the_specification() -> None:
    problem = reproducible()
    assert problem.value(np.zeros(9)) == pytest.approx(4.394449154672, abs=6e-13)
    assert problem.value(problem.optimum) == pytest.approx(3.723066979916, abs=1e-12)
    np.testing.assert_allclose(problem.optimum[:3], [0.67390466, -0.28688123, -0.31487257], atol=1e-8)
    constants = [objective.smoothness for objective in problem.objectives]
    np.testing.assert_allclose(constants, [0.428854114, 0.526313685, 0.351334640, 0.640106198], atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "fedavg"}, [4.1789567704, 3.9489859875, 3.8880424793, 3.8101815987]),
        ({"name": "fedprox", "proximity": 0.5}, [4.2127542721, 4.0048850879, 3.9339349649, 3.8518028999]),
    ],
    ids=["fedavg", "fedprox"],
)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    algorithm: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm | FULL, cohorts=SETS)
    assert [problem.value(model) for model in run.models] == pytest.approx(expected, abs=6e-11, rel=0)
    assert run.floats() == (72, 72)


Round: TypeAlias = Callable[[Problem, int, tuple[int, ...], Vector, str], Vector]
"""From the problem, t, S_t, x and the weighting to the next x."""


def shares(problem: Problem, cohort: tuple[int, ...], weighting: str) -> list[float]:
    held = [problem.objectives[i].samples if weighting == "samples" else 1 for i in cohort]
    return [samples / sum(held) for samples in held]


def fedprox(problem: Problem, t: int, cohort: tuple[int, ...], x: Vector, weighting: str) -> Vector:
    new: Vector = np.zeros(9)
    for i, p in zip(cohort, shares(problem, cohort, weighting), strict=True):
        new += p * locally(problem, i, t, x, 0.2 / np.sqrt(t), 0.7)[0]
    return new


def fednova(problem: Problem, t: int, cohort: tuple[int, ...], x: Vector, weighting: str) -> Vector:
    effective, step = 0.0, np.zeros(9)
    for i, p in zip(cohort, shares(problem, cohort, weighting), strict=True):
        w, steps = locally(problem, i, t, x, 0.2)
        effective += p * steps
        step += p * (x - w) / steps
    return x - effective * step


def mb_sgd(problem: Problem, t: int, cohort: tuple[int, ...], x: Vector, weighting: str) -> Vector:
    total: Vector = np.zeros(9)
    for i in cohort:
        gradients = [problem.objectives[i].batch_gradient(x, batch) for batch in drawn(problem, i, t)]
        total += problem.weights[i] * np.mean(gradients, axis=0)
    return x - 0.2 / t * total / len(cohort)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("following", "algorithm"),
    [
        (fedprox, {"name": "fedprox", "proximity": 0.7, "step_decay": "inverse-sqrt"}),
        (fednova, {"name": "fednova"}),
        (mb_sgd, {"name": "mb-sgd", "step_decay": "inverse"}),
    ],
    ids=["fedprox", "fednova", "mb-sgd"],
)
def test_rounds_are_those_of_the_formula(
    following: Round, algorithm: dict[str, Any], weighting: str, tmp_path: Path
) -> None:
    problem = reproducible(weighted=weighting == "samples")
    run = train(problem, tmp_path, BATCHES | algorithm | {"weighting": weighting}, cohorts=SETS, seed=3)
    x: Vector = np.zeros(9)
    for t, (cohort, model) in enumerate(zip(SETS, run.models, strict=True), 1):
        x = following(problem, t, cohort, x, weighting)
        np.testing.assert_allclose(model, x, rtol=0, atol=1e-13)


def test_with_as_many_steps_everywhere_fednova_is_fedavg(tmp_path: Path) -> None:
    settings = {"local_steps": 5, "batch_size": 3, "step_size": 0.2}
    nova, average = (
        train(reproducible(), tmp_path, {"name": name, **settings}, cohorts=SETS) for name in ("fednova", "fedavg")
    )
    np.testing.assert_allclose(nova.models, average.models, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_clients_with_more_steps_do_not_pull_the_model_of_fednova_to_themselves(tmp_path: Path) -> None:
    """FedAvg ends near the minimum of sum_i p_i tau_i f_i, which is another one (the paper's Theorem 1)."""
    problem = reproducible()
    settings = {"local_epochs": 1, "batch_size": 1, "step_size": 0.02, "weighting": "uniform"}
    nova, average = (
        train(problem, tmp_path, {"name": name, **settings}, rounds=300).model for name in ("fednova", "fedavg")
    )
    steps = np.array([float(objective.samples) for objective in problem.objectives])
    skewed = sum(tau * f.gradient(average) for tau, f in zip(steps, problem.objectives, strict=True))
    assert np.linalg.norm(skewed) / steps.mean() < np.linalg.norm(problem.gradient(average)) / 10
    assert problem.gap(nova) < problem.gap(average) / 100


def test_many_steps_of_fedprox_end_at_the_proximal_point(tmp_path: Path) -> None:
    problem = reproducible()
    algorithm = {"name": "fedprox", "local_steps": 400, "batch_size": None, "step_size": 0.5, "proximity": 0.3}
    run = train(problem, tmp_path, algorithm, cohorts=[[2]], rounds=3)
    f = problem.objectives[2]
    x: Vector = np.zeros(9)
    for model in run.models:
        np.testing.assert_allclose(f.gradient(model) + 0.3 * (model - x), 0, rtol=0, atol=1e-12)
        assert np.abs(model - x).max() > 0.01
        x = model


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_full_batches_of_all_clients_are_gradient_descent(weighting: str, tmp_path: Path) -> None:
    problem = reproducible(weighted=weighting == "samples")
    algorithm = {"name": "mb-sgd", "batch_size": None, "step_size": 1.5, "weighting": weighting}
    run = train(problem, tmp_path, algorithm, rounds=200)
    w: Vector = np.zeros(9)
    for model in run.models:
        w = w - 1.5 * problem.gradient(w) / 4
        np.testing.assert_allclose(model, w, rtol=0, atol=1e-13)
    assert problem.gap(run.model) < 1e-10
    assert reproducible(weighted=weighting != "samples").gap(run.model) > 1e-4
