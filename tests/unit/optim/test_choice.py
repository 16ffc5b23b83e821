"""Which solver runs, what is refused, and how a solver is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import Hinge, Softmax
from fenchel.common.objectives.objective import Objective
from fenchel.common.optim import Tilted, chosen
from fenchel.common.optim.choice import check_solver
from fenchel.common.settings.solver import (
    AutoSolver,
    GradientSolver,
    LbfgsSolver,
    NewtonCgSolver,
    NewtonSolver,
    SgdSolver,
    Solver,
    Stopping,
    parse_solver,
)
from tests.messages import raises
from tests.unit.optim.problems import EXACT, Quadratic, linear, run, shard_of, tilted


def hinge() -> LinearObjective:
    return LinearObjective(Hinge(), shard_of(np.eye(3), [0, 1, 1], 2), l2=0.1)


class OnlyGradients(Quadratic):
    hessian_vector = Objective.hessian_vector


def test_auto_takes_newton_where_it_can() -> None:
    stop = Stopping(steps=3)
    auto = AutoSolver(stop=stop)
    assert chosen(auto, linear("softmax")) == NewtonCgSolver(stop=stop)
    assert chosen(auto, linear("softmax", l2=0.0)) == SgdSolver(stop=stop)
    assert chosen(auto, hinge()) == SgdSolver(stop=stop)
    assert chosen(auto, Quadratic([1.0])) == SgdSolver(stop=stop)
    assert chosen(GradientSolver(stop=stop), linear("softmax")) == GradientSolver(stop=stop)


def test_the_usual_rule_becomes_explicit() -> None:
    objective = linear("softmax")
    assert chosen(AutoSolver(), objective).stop == Stopping(accuracy=0.25)
    assert chosen(SgdSolver(), objective).stop == Stopping(epochs=5)
    assert chosen(AutoSolver(), objective).within(0.01).stop == Stopping(accuracy=0.01)
    with pytest.raises(ValueError):
        AutoSolver().within(0.01)


CORNERED = Tilted(hinge(), np.zeros(3))
FLAT = tilted(linear("logistic", l2=0.0))
ROUGH = Tilted(Quadratic([1.0, 2.0], smooth=False), np.ones(2))
USUAL = tilted(linear("logistic"))
BENT = Tilted(OnlyGradients([1.0]), np.ones(1))
REFUSED: list[tuple[Tilted, str, dict[str, Any], str]] = [
    *((CORNERED, solver, {"steps": 1}, "solver.kind") for solver in EXACT),
    *((FLAT, solver, {"accuracy": 0.25}, "solver.stop.accuracy") for solver in EXACT),
    *((ROUGH, solver, {"accuracy": 0.25}, "solver.stop.accuracy") for solver in ("newton", "newton-cg", "lbfgs")),
    (ROUGH, "{kind: gradient, step_size: 0.1}", {"accuracy": 0.25}, "solver.stop.accuracy"),
    (ROUGH, "gradient", {"steps": 1}, "solver.step_size"),
    (ROUGH, '{kind: gradient, step_size: "2/(alpha+beta)"}', {"steps": 1}, "solver.step_size"),
    *(
        (USUAL, kind, {rule: 0.25}, f"solver.stop.{rule}")
        for kind in ("sgd", "adam")
        for rule in ("accuracy", "gradient")
    ),
    *((USUAL, kind, {"epochs": 2}, "solver.stop.epochs") for kind in ("gradient", "newton", "newton-cg", "lbfgs")),
    *((BENT, kind, {"steps": 2}, "solver.kind") for kind in ("newton", "newton-cg")),
    (tilted(linear("softmax", features=701)), "newton", {}, "solver.kind"),
]


@pytest.mark.parametrize(("problem", "solver", "stop", "key"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_solver_and_a_rule_that_do_not_fit_the_problem_are_refused(
    problem: Tilted, solver: str, stop: dict[str, Any], key: str
) -> None:
    with raises(SettingsError, key=key):
        run(problem, solver, **stop)


def test_a_hessian_that_is_too_large_is_refused_before_there_are_data() -> None:
    with raises(SettingsError, key="solver.kind"):
        check_solver(NewtonSolver(), linear("softmax", features=701))


@pytest.mark.parametrize("solver", [*EXACT, "sgd", "adam"])
def test_there_is_nothing_to_learn_from_no_samples(solver: str) -> None:
    empty = LinearObjective(Softmax(), shard_of(np.empty((0, 2)), np.empty(0, np.int64), 2), l2=0.1)
    with raises(DataError):
        run(Tilted(empty, np.zeros(4)), solver, steps=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lbfgs", LbfgsSolver()),
        ("{kind: gradient, accelerated: true}", GradientSolver(accelerated=True)),
        ("{kind: gradient, step_size: 0.5}", GradientSolver(step_size=0.5)),
        ("{kind: gradient, step_size: 2/(alpha+beta)}", GradientSolver(step_size="2/(alpha+beta)")),
        ("{kind: sgd, stop: {epochs: 7}}", SgdSolver(stop=Stopping(epochs=7))),
        ("auto", AutoSolver()),
    ],
)
def test_a_solver_can_be_named_in_a_few_words(text: str, expected: Solver) -> None:
    assert parse_solver(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "bfgs",
        "{kind: lbfgs, step_size: 1}",
        "{kind: sgd, stop: {steps: 1, epochs: 1}}",
        "{kind: sgd, stop: {steps: 0}}",
        "{kind: gradient, accelerated: true, step_size: 2/(alpha+beta)}",
        "{kind: newton, stop: {accuracy: 1.0}}",
        "7",
        "{kind: ",
        "",
    ],
)
def test_a_solver_that_is_not_one_is_refused(text: str) -> None:
    with raises(SettingsError, source="--solver"):
        parse_solver(text, "--solver")


def test_a_choice_of_ones_own_takes_over_when_the_run_stops() -> None:
    run_wide = NewtonCgSolver(stop=Stopping(accuracy=0.01))
    assert LbfgsSolver().stopping_like(run_wide) == LbfgsSolver(stop=Stopping(accuracy=0.01))
    own = SgdSolver(stop=Stopping(epochs=3))
    assert own.stopping_like(run_wide) is own


def test_an_accuracy_can_be_tightened_and_nothing_else() -> None:
    assert Stopping(accuracy=0.25).within(0.01) == Stopping(accuracy=0.01)
    assert Stopping(accuracy=0.001).within(0.01) == Stopping(accuracy=0.001)
    assert Stopping(steps=2).within(0.01) == Stopping(steps=2)
    assert NewtonCgSolver(stop=Stopping(accuracy=0.25)).within(0.01).stop == Stopping(accuracy=0.01)
