"""FedDCD and AccFedDCD: the numbers of the specification, the invariants, and the traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from common.arrays import Vector
from server.algorithms.acc_feddcd import AccFedDCD
from server.fleet import Cohort
from tests.algorithms.mlr import SETS, Problem, Run, reproducible, train

EXACT = {"kind": "newton-cg", "stop": {"gradient": 1e-13}}
PAIRS = {"sampler": {"kind": "fixed", "size": 2}}  # says tau = 2; who takes part is given
NAMES = tuple(f"client-00{i}" for i in range(4))


def feddcd(**settings: Any) -> dict[str, Any]:
    return {"name": "feddcd", "weighting": "uniform", "solver": EXACT, **settings}


def accelerated(**settings: Any) -> dict[str, Any]:
    # The oracle numbers have beta by section 1.6: the largest of the clients' bounds.
    return {
        "name": "acc-feddcd",
        "weighting": "uniform",
        "solver": EXACT,
        "smoothness": 0.6401061976,
        **settings,
    }


def conjugates(problem: Problem, duals: list[Vector]) -> float:
    """G(y) = sum_i max_w <y_i, w> - f_i(w)."""
    total = 0.0
    for objective, dual in zip(problem.objectives, duals, strict=True):
        found = minimize(
            lambda w, f=objective, y=dual: f.value(w) - y @ w,
            np.zeros(dual.size),
            jac=lambda w, f=objective, y=dual: f.gradient(w) - y,
            method="BFGS",
            options={"gtol": 1e-9},
        )
        total -= found.fun
    return total


def duals_after(run: Run) -> list[Vector]:
    return run.client_states("dual")


@pytest.fixture
def second_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cohort of a round is the first one of the next."""

    def second_sample(self: AccFedDCD) -> Cohort:
        return Cohort(self.fleet, tuple(NAMES[i] for i in SETS[self.fleet.round % len(SETS)]))

    monkeypatch.setattr(AccFedDCD, "second_sample", second_sample)


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize(
    ("algorithm", "values", "dual", "squares", "floats"),
    [
        (
            feddcd(),
            [3.9798780068, 3.9617738857, 3.8034614609, 3.7855820154],
            -3.4874190933,
            0.1745582965,
            (72, 72),
        ),
        (
            feddcd(step_size=1.9),
            [3.9798780068, 3.9617738857, 3.7630318763, 3.7872880215],
            -3.6608485988,
            0.4028652682,
            (72, 72),
        ),
        (
            accelerated(),
            [3.9798780068, 3.9617738857, 3.7866928995, 3.7800632563],
            -3.5639601054,
            0.2443449371,
            (72, 72),
        ),
        (
            accelerated(cohorts=2),
            [3.9798780068, 3.9642954425, 3.8280531216, 3.8164928116],
            -3.5039180967,
            0.2155819560,
            (144, 144),
        ),
    ],
    ids=["feddcd", "eta 1.9", "one cohort", "two cohorts"],
)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    algorithm: dict[str, Any],
    values: list[float],
    dual: float,
    squares: float,
    floats: tuple[int, int],
    tmp_path: Path,
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm, cohorts=SETS, participation=PAIRS)
    assert [problem.value(model) for model in run.models] == pytest.approx(values, abs=2e-10, rel=0)
    duals = duals_after(run)
    if algorithm["name"] == "feddcd":  # the others' idle clients catch up only when they are asked
        assert conjugates(problem, duals) == pytest.approx(dual, abs=1e-9)
        assert sum(float(y @ y) for y in duals) == pytest.approx(squares, abs=1e-9)
        assert np.abs(np.sum(duals, axis=0)).max() < 1e-14
    assert run.floats() == floats


def test_repeated_for_long_it_reaches_the_optimum(tmp_path: Path) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, feddcd(), cohorts=SETS, rounds=100)
    assert problem.value(run.model) - problem.value(problem.optimum) == pytest.approx(1.17e-11, rel=0.05)
