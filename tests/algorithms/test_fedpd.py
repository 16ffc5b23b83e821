"""FedPD: against its formulas written without any machinery, FedDyn with the sign turned, and its optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.randomness import generator
from tests.algorithms.mlr import Problem, Run, reproducible, train
from tests.messages import raises

FULL = {"local_steps": 5, "batch_size": None, "step_size": 0.3, "weighting": "uniform"}
SEED = 3


def fedpd(**keys: Any) -> dict[str, Any]:
    return {"name": "fedpd", **keys}


def talking(run: Run) -> list[bool]:
    return [run.states[t].agreed for t in sorted(run.states)]


def simulated(problem: Problem, algorithm: dict[str, Any], talks: list[bool]) -> tuple[Vector, list[Vector]]:
    """Return x and all mu_i of Algorithm 1."""
    eta = algorithm["proximal_step"]
    model: Vector = np.zeros(9)
    anchors: list[Vector] = [np.zeros(9) for _ in problem.shards]
    duals: list[Vector] = [np.zeros(9) for _ in problem.shards]
    for t, averaged in enumerate(talks, 1):
        ends = []
        for i, f in enumerate(problem.objectives):
            x, w = anchors[i], anchors[i].copy()
            batches = f.batches(
                generator(SEED, f"client-00{i}", t, "batches"),
                steps=algorithm["local_steps"],
                batch_size=algorithm["batch_size"],
            )
            for batch in batches:
                g = problem.weights[i] * f.batch_gradient(w, batch)
                w = w - algorithm["step_size"] * (g + duals[i] + (w - x) / eta)
            duals[i] = duals[i] + (w - x) / eta
            ends.append(w + eta * duals[i])
        if averaged:
            model = np.mean(ends, axis=0)
        anchors = [model] * problem.clients if averaged else ends
    return model, duals


@settings(max_examples=10, deadline=None)
@given(
    skip=st.sampled_from([0.0, 0.5, 0.9]),
    eta=st.floats(0.3, 4),
    steps=st.integers(1, 4),
    batch_size=st.sampled_from([None, 2]),
    weighting=st.sampled_from(["samples", "uniform"]),
)
def test_runs_are_those_of_the_formulas(
    skip: float,
    eta: float,
    steps: int,
    batch_size: int | None,
    weighting: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    problem = reproducible(weighted=weighting == "samples")
    algorithm = fedpd(
        proximal_step=eta, skip=skip, local_steps=steps, batch_size=batch_size, step_size=0.3, weighting=weighting
    )
    run = train(problem, tmp_path_factory.mktemp("run"), algorithm, rounds=6, seed=SEED)
    model, duals = simulated(problem, algorithm, talking(run))
    assert all(talking(run)) == (skip == 0)
    np.testing.assert_allclose(run.model, model, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.client_states("dual"), duals, rtol=0, atol=1e-12)


def test_everybody_together_reaches_the_optimum(tmp_path: Path) -> None:
    problem = reproducible(weighted=True)
    algorithm = fedpd(local_steps=5, batch_size=None, step_size=0.5, proximal_step=5)
    run = train(problem, tmp_path, algorithm, rounds=150)
    assert np.abs(run.model - problem.optimum).max() < 1e-7


@pytest.mark.slow
def test_rounds_without_communication_are_exact_for_equal_clients_and_not_for_others(tmp_path: Path) -> None:
    different = reproducible()
    equal = Problem((different.shards[0],) * 3, l2=0.1)
    algorithm = fedpd(local_steps=5, batch_size=None, step_size=0.5, proximal_step=5, skip=0.3, weighting="uniform")
    alike = train(equal, tmp_path, algorithm, rounds=200)
    assert np.abs(alike.model - equal.optimum).max() < 1e-7
    assert np.mean(talking(alike)) == pytest.approx(0.7, abs=0.1)
    drifting = train(different, tmp_path, algorithm, rounds=200)
    assert 1e-3 < np.abs(drifting.model - different.optimum).max() < 0.5


def test_rounds_without_communication_carry_no_model(tmp_path: Path) -> None:
    run = train(reproducible(), tmp_path, fedpd(**FULL, skip=0.5), rounds=20)
    talks = talking(run)
    assert 4 < sum(talks) < 16
    told = [True, *talks[:-1]]  # the model is sent after a round in which it changed
    up, down = sum(run.calls["bytes_up"].to_pylist()), sum(run.calls["bytes_down"].to_pylist())
    assert up == 4 * 9 * 8 * sum(talks)
    assert 4 * 9 * 8 * sum(told) <= down < 4 * (9 * 8 * sum(told) + 16 * 20)


def test_a_part_of_the_clients_may_take_part_only_where_every_round_talks(tmp_path: Path) -> None:
    sections: dict[str, Any] = {"participation": {"sampler": {"kind": "fixed", "size": 2}}}
    run = train(reproducible(), tmp_path, fedpd(**FULL), rounds=3, **sections)
    assert all(talking(run))
    with raises(SettingsError, key="participation.sampler.kind"):
        train(reproducible(), tmp_path, fedpd(**FULL, skip=0.5), **sections)


def test_steps_that_diverge_are_refused(tmp_path: Path) -> None:
    with raises(SettingsError, key="algorithm", source="settings"):
        reproducible().settings(tmp_path, fedpd(**FULL, proximal_step=0.1))
