"""DRFA: the formulas, what it sends, and where it leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.drdm_oracle import Q1, Constants, drdm, drdm_on, everybody
from tests.algorithms.drdm_runs import SEED, minibatch_gradients, record, reported_losses, sampled
from tests.algorithms.feddcd_quadratics import problem_of
from tests.algorithms.mlr import reproducible, train

ROUNDS, TAU = 8, 4
LOCAL: dict[str, Any] = {"step_size": 0.3, "local_steps": TAU, "batch_size": 2}


@pytest.mark.parametrize("sampling", ["with-replacement", "without-replacement", "uniform"])
@pytest.mark.parametrize("estimator", ["plain", "control-variate"])
def test_runs_are_those_of_the_independent_implementation(sampling: str, estimator: str, tmp_path: Path) -> None:
    algorithm = {"name": "drfa", "sampling": sampling, "dual_estimator": estimator, "dual_step_size": 0.02, **LOCAL}
    problem = reproducible()
    taken = record(problem, tmp_path, algorithm, rounds=ROUNDS, participation=sampled(3))
    gradients, losses = minibatch_gradients(problem, 2, TAU), reported_losses(problem)
    constants = Constants(0.3, TAU, 0, 0.02, "none", estimator)
    trace = drdm(4, 9, gradients, losses, taken, constants, ROUNDS)
    np.testing.assert_allclose(taken.run.models, trace.models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(list(taken.snapshots.values()), trace.snapshots, rtol=0, atol=1e-12)
    np.testing.assert_allclose(taken.weights, trace.weights[1:], rtol=0, atol=1e-12)
    last = sum(draw.step == TAU for draw in taken.draws.values())
    trained = sum(int(np.count_nonzero(draw.times)) for draw in taken.draws.values())
    short = sum(int(np.count_nonzero(draw.times)) for draw in taken.draws.values() if draw.step == TAU)
    assert last
    assert taken.run.floats() == (9 * (2 * trained - short), 9 * (trained + 3 * ROUNDS))


def test_without_replacement_everybody_it_is_fedavg_whatever_lambda_is(tmp_path: Path) -> None:
    algorithm = {"name": "drfa", "sampling": "without-replacement", "dual_step_size": 0.05, **LOCAL}
    drfa = record(reproducible(), tmp_path, algorithm, rounds=ROUNDS)
    fedavg = train(
        reproducible(),
        tmp_path,
        {"name": "fedavg", "weighting": "uniform", "batches": "independent", **LOCAL},
        rounds=ROUNDS,
        seed=SEED,
    )
    np.testing.assert_allclose(drfa.run.models, fedavg.models, rtol=0, atol=1e-12)
    assert np.abs(drfa.weights[-1] - 0.25).max() > 0.1


def test_clients_that_drift_keep_everybody_together_from_the_optimum(tmp_path: Path) -> None:
    """The limit of FedAvg on Q1, in closed form: sum_i b_i (1 - q_i) / sum_i (1 - q_i)."""
    a, b = Q1.curvatures[:, 0, 0], Q1.centers[:, 0]
    moved = 1 - (1 - 0.05 * a) ** 10
    limit = float((b * moved).sum() / moved.sum())
    assert limit == pytest.approx(0.88376, abs=5e-6)
    constants = Constants(0.05, 10, 0, 1e-4, "none")
    trace = drdm_on(Q1, everybody(5, range(1, 11)), constants, 60)
    assert float(trace.model[0]) == pytest.approx(limit, abs=1e-9)
    algorithm = {
        "name": "drfa",
        "sampling": "without-replacement",
        "step_size": 0.05,
        "batch_size": None,
        "dual_step_size": 1e-4,
    }
    taken = record(problem_of(Q1), tmp_path, algorithm, rounds=60)
    assert float(taken.run.model[0]) == pytest.approx(limit, abs=1e-9)
