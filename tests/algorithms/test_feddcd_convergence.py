"""FedDCD and AccFedDCD reach the centralised optimum on clients of two classes each, in as many rounds as known.

Digits, 20 clients, six of them a round (docs/specifications/feddcd.md, section 8): the counts are those of the second
implementation there, on the same split with other cohorts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.mlr import Problem, Run, reproducible, train, two_class_digits
from tests.slow import rest_slow

GAPS = (1e-2, 1e-4, 1e-6)
SIX = {"sampler": {"kind": "fixed", "size": 6}}
LONG = pytest.mark.slow  # make test-all


@cache
def digits() -> Problem:
    return two_class_digits()


def learn(problem: Problem, parent: Path, algorithm: dict[str, Any], rounds: int, **given: Any) -> Run:
    given = {"participation": SIX} | given
    return train(
        problem, parent, {"weighting": "uniform", **algorithm}, rounds=rounds, checkpoint={"every": rounds}, **given
    )


def rounds_to(problem: Problem, run: Run) -> list[float]:
    """Return after how many rounds the model is within 1e-2, 1e-4 and 1e-6 of the optimum; inf: never."""
    lowest = problem.value(problem.optimum)
    gaps = np.array([problem.value(model) - lowest for model in run.models]) / problem.clients
    found = [np.flatnonzero(gaps <= gap) for gap in GAPS]
    return [float(rounds[0]) + 1 if rounds.size else np.inf for rounds in found]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "known"),
    rest_slow(
        [
            pytest.param({"name": "feddcd"}, (109,), id="feddcd"),
            pytest.param({"name": "feddcd"}, (109, 284, 455), id="feddcd, all", marks=LONG),
            pytest.param({"name": "feddcd", "step_size": 1.9}, (61,), id="eta 1.9"),
            pytest.param({"name": "feddcd", "step_size": 1.9}, (61, 143, 242), id="eta 1.9, all", marks=LONG),
            pytest.param({"name": "acc-feddcd"}, (27, 90), id="one cohort"),
            pytest.param({"name": "acc-feddcd"}, (27, 90, 155), id="one cohort, all", marks=LONG),
            pytest.param({"name": "acc-feddcd", "cohorts": 2}, (30,), id="two cohorts"),
            pytest.param({"name": "acc-feddcd", "cohorts": 2}, (30, 88, 153), id="two cohorts, all", marks=LONG),
        ]
    ),
)
def test_digits_take_as_many_rounds_as_known(algorithm: dict[str, Any], known: tuple[int, ...], tmp_path: Path) -> None:
    # With the settings' own solver, whose accuracy is delta = 1/4: the counts are those of exact solves.
    problem = digits()
    assert problem.value(problem.optimum) / 20 == pytest.approx(1.554134, abs=5e-7)
    run = learn(problem, tmp_path, algorithm, int(1.16 * known[-1]))
    measured = rounds_to(problem, run)
    assert measured[: len(known)] == pytest.approx(known, rel=0.15)
    assert np.linalg.norm(run.model - problem.optimum) <= np.sqrt(2 * 20 * GAPS[len(known) - 1] / (20 * 0.1))
    if algorithm["name"] == "acc-feddcd":
        assert run.states[max(run.states)].restarts.size == 0


@pytest.mark.slow
def test_an_accuracy_of_a_quarter_is_as_good_as_exact(tmp_path: Path) -> None:
    problem, models = digits(), []
    for name, solver in {
        "exact": {"kind": "newton-cg", "stop": {"gradient": 1e-10}},
        "quarter": {"kind": "gradient", "accelerated": True, "stop": {"accuracy": 0.25}},
    }.items():
        (parent := tmp_path / name).mkdir()
        algorithm = {"name": "feddcd", "step_size": 1.9, "solver": solver}
        models.append(learn(problem, parent, algorithm, 30).models)
    exact, quarter = ([problem.gap(model) for model in of[9::10]] for of in models)
    np.testing.assert_allclose(quarter, exact, rtol=0.1)
    assert exact[-1] < 0.5 * exact[0]


@pytest.mark.slow
def test_a_step_beyond_the_limit_diverges(tmp_path: Path) -> None:
    # Pixels that are empty on a client have curvature alpha, no more: there the limit is 2.
    algorithm, everybody = {"name": "feddcd", "step_size": 2.2}, {"sampler": {"kind": "all"}}
    run = learn(digits(), tmp_path, algorithm, 20, participation=everybody)
    assert 2 * run.states[10].figures["spread"] < run.states[20].figures["spread"]


def test_cohorts_that_never_mix_do_not_find_the_optimum(tmp_path: Path) -> None:
    problem = reproducible()
    pairs = {"sampler": {"kind": "fixed", "size": 2}}
    stuck = learn(problem, tmp_path, {"name": "feddcd"}, 100, cohorts=[(0, 1), (2, 3)], participation=pairs)
    assert problem.gap(stuck.model) > 0.01
    # Each reaches its own optimum.
    gradients = [problem.objectives[i].gradient(stuck.models[-2]) for i in (0, 1)]
    assert np.linalg.norm(np.sum(gradients, axis=0)) < 1e-6
    assert np.abs(np.sum(stuck.client_states("dual")[:2], axis=0)).max() < 1e-13
