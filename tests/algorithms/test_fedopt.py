"""FedOpt: the formulas of the three optimisers, and that they minimise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.algorithms.mlr import BATCHES, SETS, locally, reproducible, train
from tests.slow import rest_slow


@pytest.mark.parametrize("optimizer", ["adam", "yogi", "adagrad"])
def test_rounds_are_those_of_the_formula(optimizer: str, tmp_path: Path) -> None:
    problem = reproducible()
    settings = {"server_step_size": 0.3, "betas": [0.8, 0.9], "adaptivity": 0.01, "weighting": "uniform"}
    algorithm = {"name": "fedopt", "optimizer": optimizer, **BATCHES, **settings}
    run = train(problem, tmp_path, algorithm, cohorts=SETS, rounds=8, seed=3)
    x, m, v = np.zeros(9), np.zeros(9), [0.01**2] * 9
    for t in range(1, 9):
        change = np.mean([locally(problem, i, t, x)[0] - x for i in SETS[(t - 1) % 4]], axis=0)
        for j, delta in enumerate(change):
            m[j] = 0.8 * m[j] + 0.2 * delta
            if optimizer == "adagrad":
                v[j] += delta**2
            elif optimizer == "adam":
                v[j] = 0.9 * v[j] + 0.1 * delta**2
            elif v[j] > delta**2:
                v[j] -= 0.1 * delta**2
            else:
                v[j] += 0.1 * delta**2
        x = x + 0.3 * m / (np.sqrt(v) + 0.01)
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-12)
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("optimizer", rest_slow(["adam", "yogi", "adagrad"]))
def test_it_minimises_where_everybody_takes_full_steps(optimizer: str, tmp_path: Path) -> None:
    """With one full batch the change is a gradient; with a large tau steps shorten as it does."""
    problem = reproducible()
    one = {"local_steps": 1, "batch_size": None, "step_size": 1.0, "weighting": "uniform"}
    algorithm = {"name": "fedopt", "optimizer": optimizer, "server_step_size": 0.5, "adaptivity": 0.1, **one}
    run = train(problem, tmp_path, algorithm, rounds=400)
    assert problem.gap(run.model) < 1e-6 < problem.gap(np.zeros(9))
