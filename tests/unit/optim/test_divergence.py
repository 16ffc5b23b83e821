"""Steps that are too long end a solve at once, with a word on what to change, however far it might have gone on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import SettingsError
from fenchel.common.optim import Tilted
from tests.messages import raises
from tests.unit.optim.problems import EXACT, linear, run, tilted

TOO_LONG = {
    "{kind: gradient, step_size: 1000.0}": "solver.step_size: 1000",
    "{kind: gradient, step_size: 1000.0, accelerated: true}": "solver.step_size: 1000",
}
NEVER = 10**9
"""Iterations that no test would live to see the end of."""


@pytest.mark.parametrize("rule", ["accuracy", "gradient", "steps"])
@pytest.mark.parametrize("solver", TOO_LONG)
def test_a_diverging_step_size_is_named_at_once(solver: str, rule: str) -> None:
    stop: dict[str, dict[str, Any]] = {
        "accuracy": {"accuracy": 1e-6, "steps": NEVER},
        "gradient": {"gradient": 1e-9, "steps": NEVER},
    }
    with raises(SettingsError, key="solver.kind"):
        run(tilted(linear("logistic")), solver, **stop.get(rule, {"steps": NEVER}))


@pytest.mark.parametrize(("accelerated", "most"), [(False, 2), (True, 1)])
def test_gradient_descent_says_which_steps_are_safe(accelerated: bool, most: int) -> None:
    problem = tilted(linear("squared"))
    with raises(SettingsError, key="solver.kind") as caught:
        run(problem, f"{{kind: gradient, step_size: 50.0, accelerated: {str(accelerated).lower()}}}", steps=NEVER)
    (named,) = re.findall(rf"at most {most}/beta = ([\d.e-]+) is safe", str(caught.value))
    safe = float(named) * 0.99
    assert safe == pytest.approx(0.99 * most / problem.objective.smoothness, rel=0.01)
    solver = f"{{kind: gradient, step_size: {safe}, accelerated: {str(accelerated).lower()}}}"
    assert run(problem, solver, gradient=1e-6).gradient_norm <= 1e-6


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_stochastic_steps_of_fixed_number_end_early(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, steps = linear("logistic"), 0
    gradient = objective.batch_gradient

    def counted(w: Vector, rows: Indices) -> Vector:
        nonlocal steps
        steps += 1
        return gradient(w, rows)

    monkeypatch.setattr(objective, "batch_gradient", counted)
    with raises(SettingsError, key="solver.kind"):
        run(tilted(objective), f"{{kind: {kind}, step_size: 1.0e+308}}", steps=NEVER)
    assert steps < 200


@pytest.mark.parametrize("solver", sorted(EXACT))
def test_a_tilt_that_is_not_finite_is_not_the_solver_s_fault(solver: str) -> None:
    objective = linear("logistic")
    problem = Tilted(objective, np.full(objective.dimension, np.inf))
    with raises(SettingsError, key="solver.kind"):
        run(problem, solver, gradient=1e-9)
