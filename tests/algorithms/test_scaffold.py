"""SCAFFOLD: the numbers of the specification, and a server whose c is the mean of all c_i, whatever fails."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.algorithms.scaffold import ScaffoldClient
from fenchel.common.arrays import Vector
from fenchel.common.objectives.objective import Objective
from fenchel.common.randomness import generator
from fenchel.testing import Faults
from tests.algorithms.mlr import SETS, Problem, Run, reproducible, train, two_class_digits
from tests.algorithms.straggler import held_up, missed

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


def test_it_sends_two_models_up_and_two_down_a_client_and_nothing_to_others(tmp_path: Path) -> None:
    run = train(reproducible(), tmp_path, scaffold(**FULL), cohorts=SETS)
    assert run.floats() == (144, 144)
    calls = run.calls.select(["round", "client", "bytes_down", "bytes_up"]).to_pylist()
    asked = [(t, f"client-00{i}") for t, cohort in enumerate(SETS, 1) for i in cohort]
    assert sorted((call["round"], call["client"]) for call in calls) == asked
    assert {(call["bytes_down"], call["bytes_up"]) for call in calls} == {(2 * 9 * 8, 2 * 9 * 8)}


def test_without_the_correction_it_is_fedavg_and_sends_no_more(tmp_path: Path) -> None:
    problem = reproducible()
    plain = train(problem, tmp_path, scaffold(**FULL, correction="none"), cohorts=SETS * 2, rounds=8)
    average = train(problem, tmp_path, {"name": "fedavg", **FULL}, cohorts=SETS * 2, rounds=8)
    np.testing.assert_allclose(plain.model, average.model, rtol=0, atol=1e-14)
    assert plain.floats() == average.floats() == (144, 144)
    assert not np.any(plain.states[8].control)


def test_each_round_tells_the_norm_of_the_mean_control_variate(tmp_path: Path) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, scaffold(**FULL), cohorts=SETS, rounds=120)
    norms = pq.read_table(run.folder.metrics)["control_variate_norm"].to_pylist()
    # In round 1 the cohort's c_i become means of gradients, and the others' stay zero: c is that of two out of four.
    steps = [local_gradients(problem.objectives[i]) for i in SETS[0]]
    assert norms[0] == pytest.approx(np.linalg.norm(np.sum(steps, axis=0) / 4), rel=1e-12)
    last = np.mean(run.client_states("control"), axis=0)
    assert norms[-1] == pytest.approx(np.linalg.norm(last), abs=1e-13)
    assert norms[-1] < 1e-3 * norms[0], "at the optimum the gradients cancel"


def local_gradients(objective: Objective) -> Vector:
    """The mean of the gradients along the local steps of FULL from zero, uncorrected."""
    w: Vector = np.zeros(9)
    total: Vector = np.zeros(9)
    for _ in range(FULL["local_steps"]):
        gradient = objective.gradient(w)
        w, total = w - FULL["step_size"] * gradient, total + gradient
    total /= FULL["local_steps"]
    return total


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


@pytest.mark.parametrize("weighted", [False, True], ids=["sum of objectives", "all samples"])
@pytest.mark.parametrize("correction", ["option-ii", "option-i"])
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


def test_a_client_that_never_comes_back_counts_by_its_last_control_variate(tmp_path: Path) -> None:
    problem = reproducible()
    cohorts = [(0, 1, 2, 3)] * 3 + [(0, 1), (1, 2), (0, 2)] * 120
    run = train(problem, tmp_path, scaffold(**FULL), cohorts=cohorts, rounds=len(cohorts))
    frozen = run.client_states("control")[3]
    there = sum((f.gradient(run.model) for f in problem.objectives[:3]), np.zeros(9))
    np.testing.assert_allclose(there + frozen, 0, rtol=0, atol=1e-10)
    assert np.abs(problem.gradient(run.model)).max() > 1e-3, "its objective is replaced by a linear one"
    assert imbalance(run) < 1e-14


def test_on_two_classes_a_client_it_reaches_the_optimum_where_fedavg_stalls(tmp_path: Path) -> None:
    problem = two_class_digits()
    local = {"local_steps": 20, "batch_size": None, "step_size": 0.03, "weighting": "uniform"}
    sections: dict[str, Any] = {"rounds": 90, "participation": {"sampler": {"kind": "fixed", "size": 6}}}
    gaps = {
        name: [problem.gap(model) for model in train(problem, tmp_path, algorithm, **sections).models]
        for name, algorithm in {
            "scaffold": scaffold(**local),
            "published": scaffold(**local, correction="none"),
            "fedavg": {"name": "fedavg", **local},
        }.items()
    }
    rounds = [next(t for t, gap in enumerate(gaps["scaffold"], 1) if gap <= goal) for goal in (1e-2, 1e-4, 1e-6)]
    assert rounds == pytest.approx([23, 50, 82], rel=0.15)
    assert min(gaps["fedavg"]) > 1e-2
    np.testing.assert_allclose(gaps["published"], gaps["fedavg"], rtol=1e-9)


# Faults

STOCHASTIC = {"local_epochs": 2, "batch_size": 3, "step_size": 0.1, "server_step_size": 0.9, "correction": "option-ii"}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which nothing goes wrong."""
    return disturbed(tmp_path_factory.mktemp("calm"), None)


def disturbed(parent: Path, faults: Faults | None) -> Run:
    sections: dict[str, Any] = {"rounds": 16, "participation": {"sampler": {"kind": "fixed", "size": 2}}}
    return train(reproducible(weighted=True), parent, scaffold(**STOCHASTIC), faults=faults, **sections)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("breaks", "kills"), [(3, 0), (0, 2), (3, 2)], ids=["broken streams", "killed servers", "both"]
)
def test_faults_change_no_bit_and_c_stays_the_mean(
    seed: int, breaks: int, kills: int, calm: Run, tmp_path: Path
) -> None:
    faults = Faults(random.Random(f"{seed} {breaks} {kills}"), breaks, kills, frames=15)
    run = disturbed(tmp_path, faults)
    assert run.federation is not None
    assert run.federation.killed == kills
    assert run.federation.broken >= breaks  # that often for each client, if it is asked often enough
    assert run.model.tobytes() == calm.model.tobytes()
    for own, undisturbed in zip(run.client_states("control"), calm.client_states("control"), strict=True):
        assert own.tobytes() == undisturbed.tobytes()
    assert imbalance(run) < 1e-14
    assert np.abs(run.states[16].control).max() > 1e-3


@pytest.mark.parametrize("correction", ["option-ii", "option-i"])
def test_a_control_variate_that_came_too_late_is_undone(
    correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody, slow = (0, 1, 2, 3), 1
    release = held_up(monkeypatch, ScaffoldClient, f"client-00{slow}", 2)
    algorithm = scaffold(**STOCHASTIC | {"correction": correction}, weighting="uniform")
    problem = reproducible()
    with ThreadPoolExecutor(4) as executor:
        run = train(
            problem,
            tmp_path,
            algorithm,
            cohorts=[everybody],
            executor=executor,
            on_round=lambda t: release.set() if t == 2 else None,
            participation={"deadline": 1.0},
            seed=SEED,
        )
    assert missed(run.calls) == {(2, f"client-00{slow}")}
    cohorts = [everybody, tuple(i for i in everybody if i != slow), everybody, everybody]
    model, controls = simulated(problem, algorithm, cohorts)
    np.testing.assert_allclose(run.model, model, rtol=0, atol=1e-13)
    np.testing.assert_allclose(run.client_states("control"), controls, rtol=0, atol=1e-13)
    assert imbalance(run) < 1e-14


def test_the_last_answer_of_a_client_that_came_too_late_is_not_its_control_variate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal holds a newer state than the one that counts: the test above would not see it."""
    held_up(monkeypatch, ScaffoldClient, "client-001", 4, seconds=1.5)
    algorithm = scaffold(**STOCHASTIC, weighting="uniform")
    with ThreadPoolExecutor(4) as executor:
        run = train(
            reproducible(),
            tmp_path,
            algorithm,
            cohorts=[(0, 1, 2, 3)],
            executor=executor,
            participation={"deadline": 1.0},
            seed=SEED,
        )
    cohorts = [(0, 1, 2, 3)] * 3 + [(0, 2, 3)]
    np.testing.assert_allclose(
        run.client_states("control"), simulated(reproducible(), algorithm, cohorts)[1], rtol=0, atol=1e-13
    )
    assert imbalance(run) < 1e-14
