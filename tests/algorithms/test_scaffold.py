"""SCAFFOLD: the numbers of the specification, and a server whose c is the mean of all c_i, whatever fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.algorithms.scaffold import ScaffoldClient
from fenchel.common.arrays import Vector
from fenchel.common.randomness import generator
from tests.algorithms.mlr import SETS, Problem, Run, reproducible, train, two_class_digits
from tests.algorithms.straggler import late, missed
from tests.slow import rest_slow

FULL: dict[str, Any] = {"local_steps": 5, "batch_size": None, "step_size": 0.2, "weighting": "uniform"}
SEED = 3


def scaffold(**settings: Any) -> dict[str, Any]:
    return {"name": "scaffold", **settings}


def imbalance(run: Run) -> float:
    """How far the server's c is from the mean of all clients' c_i."""
    control = run.states[max(run.states)].control
    return float(np.abs(control - np.mean(run.client_states("control"), axis=0)).max())


def simulated(
    problem: Problem, algorithm: Mapping[str, Any], cohorts: Sequence[Sequence[int]]
) -> tuple[Vector, list[Vector]]:
    """Return the final x and all c_i of the algorithm, written without any machinery."""
    x: Vector = np.zeros(9)
    c: Vector = np.zeros(9)
    controls: list[Vector] = [np.zeros(9) for _ in problem.shards]
    for t, cohort in enumerate(cohorts, 1):
        models = []
        for i in cohort:
            f, p, w, steps = problem.objectives[i], problem.weights[i], x, 0
            draws = generator(SEED, f"client-00{i}", t, "batches")
            for _ in range(algorithm["local_epochs"]):
                order, size = draws.permutation(f.samples), algorithm["batch_size"]
                for start in range(0, f.samples, size):
                    gradient = p * f.batch_gradient(w, order[start : start + size])
                    w = w - algorithm["step_size"] * (gradient - controls[i] + c)
                    steps += 1
            models.append(w)
            if algorithm["correction"] == "option-i":
                controls[i] = p * f.gradient(x)
            elif algorithm["correction"] == "option-ii":
                controls[i] = controls[i] - c + (x - w) / (steps * algorithm["step_size"])
        x = x + algorithm["server_step_size"] * (np.mean(models, axis=0) - x)
        c = np.mean(controls, axis=0)
    return x, controls


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("option-ii", [4.1789567704, 3.8938371579, 3.8295033159, 3.8076336179]),
        ("option-i", [4.1789567704, 3.8883424752, 3.8218100051, 3.8084053736]),
    ],
)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    correction: str, expected: list[float], tmp_path: Path
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, scaffold(**FULL, correction=correction), cohorts=SETS)
    assert [problem.value(model) for model in run.models] == pytest.approx(expected, abs=6e-11, rel=0)


def test_it_sends_two_models_up_and_two_down_a_client(tmp_path: Path) -> None:
    run = train(reproducible(), tmp_path, scaffold(**FULL), cohorts=SETS)
    assert run.floats() == (144, 144)
    assert {(call["bytes_down"], call["bytes_up"]) for call in run.calls.to_pylist()} == {(2 * 9 * 8, 2 * 9 * 8)}


def test_without_the_correction_it_is_fedavg_and_sends_no_more(tmp_path: Path) -> None:
    problem = reproducible()
    plain = train(problem, tmp_path, scaffold(**FULL, correction="none"), cohorts=SETS * 2, rounds=8)
    average = train(problem, tmp_path, {"name": "fedavg", **FULL}, cohorts=SETS * 2, rounds=8)
    np.testing.assert_allclose(plain.model, average.model, rtol=0, atol=1e-14)
    assert plain.floats() == average.floats() == (144, 144)
    assert not np.any(plain.states[8].control)


def test_each_round_tells_the_norm_of_the_mean_control_variate(tmp_path: Path) -> None:
    run = train(reproducible(), tmp_path, scaffold(**FULL), cohorts=SETS, rounds=120)
    norms = pq.read_table(run.folder.metrics)["control_variate_norm"].to_pylist()
    assert norms == [np.linalg.norm(run.states[t].control) for t in sorted(run.states)]
    assert 0 < norms[-1] < 1e-3 * norms[0], "at the optimum the gradients cancel"


@settings(max_examples=15)
@given(
    correction=st.sampled_from(["option-ii", "option-i", "none"]),
    weighting=st.sampled_from(["uniform", "samples"]),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 8),
    server_step_size=st.floats(0.3, 1.5),
    cohorts=st.lists(st.sets(st.integers(0, 3), min_size=1).map(sorted), min_size=1, max_size=5),
)
def test_it_is_the_algorithm_of_the_paper_whatever_the_settings_and_cohorts(
    correction: str,
    weighting: str,
    epochs: int,
    batch_size: int,
    server_step_size: float,
    cohorts: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    problem = reproducible(weighted=weighting == "samples")
    algorithm = scaffold(
        correction=correction,
        weighting=weighting,
        local_epochs=epochs,
        batch_size=batch_size,
        step_size=0.1,
        server_step_size=server_step_size,
    )
    folder = tmp_path_factory.mktemp("run")
    run = train(problem, folder, algorithm, cohorts=cohorts, rounds=len(cohorts), seed=SEED)
    model, controls = simulated(problem, algorithm, cohorts)
    np.testing.assert_allclose(run.model, model, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.client_states("control"), controls, rtol=0, atol=1e-12)
    assert imbalance(run) < 1e-13


@pytest.mark.parametrize("weighted", rest_slow([False, True]), ids=["sum of objectives", "all samples"])
@pytest.mark.parametrize("correction", rest_slow(["option-ii", "option-i"]))
def test_it_minimises_what_the_weighting_says(weighted: bool, correction: str, tmp_path: Path) -> None:
    problem, other = reproducible(weighted=weighted), reproducible(weighted=not weighted)
    algorithm = scaffold(
        local_steps=5,
        batch_size=None,
        step_size=0.2,
        correction=correction,
        weighting="samples" if weighted else "uniform",
    )
    run = train(problem, tmp_path, algorithm, cohorts=SETS, rounds=240)
    assert problem.gap(run.model) < 1e-10
    assert other.gap(run.model) > 1e-4
    gradients = [p * f.gradient(run.model) for p, f in zip(problem.weights, problem.objectives, strict=True)]
    np.testing.assert_allclose(run.client_states("control"), gradients, rtol=0, atol=1e-4)
    assert imbalance(run) < 1e-14


@pytest.mark.slow  # make test-all
def test_on_two_classes_a_client_it_reaches_the_optimum_where_fedavg_stalls(tmp_path: Path) -> None:
    problem = two_class_digits()
    local = {"local_steps": 20, "batch_size": None, "step_size": 0.03, "weighting": "uniform"}
    sections: dict[str, Any] = {"rounds": 90, "participation": {"sampler": {"kind": "fixed", "size": 6}}}
    gaps = {
        name: [problem.gap(model) for model in train(problem, tmp_path, {"name": name, **local}, **sections).models]
        for name in ("scaffold", "fedavg")
    }
    rounds = [next(t for t, gap in enumerate(gaps["scaffold"], 1) if gap <= goal) for goal in (1e-2, 1e-4, 1e-6)]
    assert rounds == pytest.approx([23, 50, 82], rel=0.15)
    assert min(gaps["fedavg"]) > 1e-2


# Faults

STOCHASTIC = {"local_epochs": 2, "batch_size": 3, "step_size": 0.1, "server_step_size": 0.9, "correction": "option-ii"}


@pytest.mark.parametrize("when", rest_slow([2, 4]), ids=["in the middle", "in the last round"])
@pytest.mark.parametrize("correction", rest_slow(["option-ii", "option-i"]))
def test_a_control_variate_that_came_too_late_is_undone(
    correction: str, when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last round the journal holds a newer state than the one that counts."""
    algorithm = scaffold(**STOCHASTIC | {"correction": correction}, weighting="uniform")
    problem, everybody = reproducible(), (0, 1, 2, 3)
    with late(monkeypatch, ScaffoldClient, "client-001", when) as slow:
        run = train(problem, tmp_path, algorithm, cohorts=[everybody], seed=SEED, **slow)
    assert missed(run.calls) == {(when, "client-001")}
    model, controls = simulated(problem, algorithm, [(0, 2, 3) if t == when else everybody for t in range(1, 5)])
    np.testing.assert_allclose(run.model, model, rtol=0, atol=1e-13)
    np.testing.assert_allclose(run.client_states("control"), controls, rtol=0, atol=1e-13)
    assert imbalance(run) < 1e-14
