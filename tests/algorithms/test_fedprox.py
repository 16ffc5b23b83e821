"""FedProx: the numbers of the specification, FedAvg without the pull, and the proximal point with many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.randomness import generator
from tests.algorithms.mlr import SETS, reproducible, train

FULL = {"local_steps": 5, "batch_size": None, "step_size": 0.2, "weighting": "uniform"}
STOCHASTIC = {"local_epochs": 2, "batch_size": 3, "step_size": 0.2}


def fedprox(**settings: Any) -> dict[str, Any]:
    return {"name": "fedprox", **settings}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "fedavg", **FULL}, [4.1789567704, 3.9489859875, 3.8880424793, 3.8101815987]),
        (fedprox(**FULL, proximity=0.5), [4.2127542721, 4.0048850879, 3.9339349649, 3.8518028999]),
    ],
    ids=["fedavg", "fedprox"],
)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    algorithm: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm, cohorts=SETS)
    assert [problem.value(model) for model in run.models] == pytest.approx(expected, abs=6e-11, rel=0)
    assert run.floats() == (72, 72)


def test_the_data_are_those_of_the_specification() -> None:
    problem = reproducible()
    assert problem.value(np.zeros(9)) == pytest.approx(4.394449154672, abs=6e-13)
    assert problem.value(problem.optimum) == pytest.approx(3.723066979916, abs=1e-12)
    np.testing.assert_allclose(problem.optimum[:3], [0.67390466, -0.28688123, -0.31487257], atol=1e-8)
    constants = [objective.smoothness for objective in problem.objectives]
    np.testing.assert_allclose(constants, [0.428854114, 0.526313685, 0.351334640, 0.640106198], atol=1e-9)


def test_mini_batch_steps_are_those_of_the_formula(tmp_path: Path) -> None:
    problem = reproducible()
    algorithm = fedprox(**STOCHASTIC, proximity=0.7, step_decay="inverse-sqrt")
    run = train(problem, tmp_path, algorithm, cohorts=SETS, seed=3)
    x = np.zeros(9)
    for t, cohort in enumerate(SETS, 1):
        eta, total, samples = 0.2 / np.sqrt(t), np.zeros(9), 0
        for i in cohort:
            objective, w = problem.objectives[i], x.copy()
            draws = generator(3, f"client-00{i}", t, "batches")
            for _ in range(2):
                order = draws.permutation(objective.samples)
                for start in range(0, objective.samples, 3):
                    batch = order[start : start + 3]
                    w = w - eta * objective.batch_gradient(w, batch) - eta * 0.7 * (w - x)
            total, samples = total + objective.samples * w, samples + objective.samples
        x = total / samples
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-13)


def test_many_steps_end_at_the_proximal_point(tmp_path: Path) -> None:
    problem = reproducible()
    algorithm = fedprox(local_steps=400, batch_size=None, step_size=0.5, proximity=0.3)
    run = train(problem, tmp_path, algorithm, cohorts=[[2]], rounds=3)
    f = problem.objectives[2]
    x: Vector = np.zeros(9)
    for model in run.models:
        np.testing.assert_allclose(f.gradient(model) + 0.3 * (model - x), 0, rtol=0, atol=1e-12)
        assert np.abs(model - x).max() > 0.01
        x = model
