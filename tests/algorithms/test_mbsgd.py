"""Mini-batch SGD: gradient descent with full batches, and the mean of mini-batches at one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.randomness import generator
from tests.algorithms.mlr import SETS, reproducible, train


def mb_sgd(**settings: Any) -> dict[str, Any]:
    return {"name": "mb-sgd", **settings}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_full_batches_of_all_clients_are_gradient_descent(weighting: str, tmp_path: Path) -> None:
    problem = reproducible(weighted=weighting == "samples")
    run = train(problem, tmp_path, mb_sgd(batch_size=None, step_size=1.5, weighting=weighting), rounds=200)
    w = np.zeros(9)
    for model in run.models:
        w = w - 1.5 * problem.gradient(w) / 4
        np.testing.assert_allclose(model, w, rtol=0, atol=1e-13)
    assert problem.gap(run.model) < 1e-10
    assert reproducible(weighted=weighting != "samples").gap(run.model) > 1e-4


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_all_batches_lie_at_the_model_that_was_sent(weighting: str, tmp_path: Path) -> None:
    problem = reproducible(weighted=weighting == "samples")
    algorithm = mb_sgd(local_steps=4, batch_size=3, step_size=0.5, step_decay="inverse", weighting=weighting)
    run = train(problem, tmp_path, algorithm, cohorts=SETS, seed=3)
    x = np.zeros(9)
    for t, cohort in enumerate(SETS, 1):
        gradients = []
        for i in cohort:
            f = problem.objectives[i]
            draws = generator(3, f"client-00{i}", t, "batches")
            orders = [draws.permutation(f.samples) for _ in range(4)]
            batches = [order[start : start + 3] for order in orders for start in range(0, f.samples, 3)][:4]
            of_batches = [f.batch_gradient(x, batch) for batch in batches]
            gradients.append(problem.weights[i] * np.mean(of_batches, axis=0))
        x = x - 0.5 / t * np.mean(gradients, axis=0)
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-13)
    assert run.floats() == (8 * 9, 8 * 9), "more batches cost nothing"
