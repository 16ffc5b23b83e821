"""FedNova: the formula, FedAvg where all clients take as many steps, and the objective that it stays true to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.mlr import BATCHES, SETS, locally, reproducible, train


def fednova(**settings: Any) -> dict[str, Any]:
    return {"name": "fednova", **settings}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_round_is_that_of_the_formula(weighting: str, tmp_path: Path) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, fednova(**BATCHES, weighting=weighting), cohorts=SETS, seed=3)
    x = np.zeros(9)
    for t, cohort in enumerate(SETS, 1):
        held = np.array([problem.objectives[i].samples if weighting == "samples" else 1 for i in cohort], float)
        p = held / held.sum()
        local = [locally(problem, i, t, x) for i in cohort]
        effective = sum(share * steps for share, (_, steps) in zip(p, local, strict=True))
        x = x - effective * sum(share * (x - w) / steps for share, (w, steps) in zip(p, local, strict=True))
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-13)


def test_with_as_many_steps_everywhere_it_is_fedavg(tmp_path: Path) -> None:
    settings = {"local_steps": 5, "batch_size": 3, "step_size": 0.2}
    nova = train(reproducible(), tmp_path, fednova(**settings), cohorts=SETS)
    average = train(reproducible(), tmp_path, {"name": "fedavg", **settings}, cohorts=SETS)
    np.testing.assert_allclose(nova.models, average.models, rtol=0, atol=1e-13)


def test_clients_with_more_steps_do_not_pull_the_model_to_themselves(tmp_path: Path) -> None:
    """FedAvg ends near the minimum of sum_i p_i tau_i f_i, which is another one (the paper's Theorem 1)."""
    problem = reproducible()
    settings = {"local_epochs": 1, "batch_size": 1, "step_size": 0.02, "weighting": "uniform"}
    everybody: dict[str, Any] = {"rounds": 400, "cohorts": [range(4)]}
    nova = train(problem, tmp_path, fednova(**settings), **everybody)
    average = train(problem, tmp_path, {"name": "fedavg", **settings}, **everybody)
    steps = np.array([float(objective.samples) for objective in problem.objectives])
    skewed = sum(tau * f.gradient(average.model) for tau, f in zip(steps, problem.objectives, strict=True))
    assert np.linalg.norm(skewed) / steps.mean() < np.linalg.norm(problem.gradient(average.model)) / 10
    assert problem.gap(nova.model) < problem.gap(average.model) / 100
