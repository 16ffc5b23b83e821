"""SGD and Adam do the steps of their pseudocode, on every objective."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.objective import Objective
from fenchel.common.optim import Tilted
from fenchel.common.settings.objective import ObjectiveSettings
from tests.unit.optim.problems import linear, run, shard_of, tilted


def network(hidden: int = 6) -> Objective:
    pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((40, 5))
    settings: TypeAdapter[ObjectiveSettings] = TypeAdapter(ObjectiveSettings)
    section = settings.validate_python({"kind": "mlp", "hidden": hidden, "l2": 1e-3})
    return build_objective(section, shard_of(x, (x[:, 0] * x[:, 1] > 0).astype(np.int64), 2))


@pytest.mark.parametrize("batch_size", [3, None])
def test_sgd_does_the_steps_of_the_pseudocode(batch_size: int | None) -> None:
    objective = linear("softmax")
    tilt, start = np.random.default_rng(4).standard_normal((2, objective.dimension))
    w, random = start.copy(), np.random.default_rng(9)
    for rows in objective.batches(random, epochs=2, batch_size=batch_size):
        w -= 0.05 * (objective.batch_gradient(w, rows) - tilt)
    text = f"{{kind: sgd, batch_size: {batch_size or 'null'}, step_size: 0.05}}"
    solved = run(Tilted(objective, tilt), text, start, seed=9, epochs=2)
    np.testing.assert_allclose(solved.w, w, atol=1e-14)
    assert solved.iterations == (10 if batch_size else 2)
    assert np.isnan(solved.gradient_norm)


def test_adam_does_the_steps_of_the_paper() -> None:
    """The first step has the step size as its length in every coordinate; then Algorithm 1, written out."""
    problem = tilted(linear("logistic"))
    text = "{kind: adam, step_size: 0.01, batch_size: null}"
    first = run(problem, text, steps=1).w
    np.testing.assert_allclose(first, -0.01 * np.sign(problem.gradient(0 * first)), rtol=1e-6)
    w, m, v = 0 * first, 0 * first, 0 * first
    for t in (1, 2, 3):
        g = problem.gradient(w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(run(problem, text, steps=3).w, w, atol=1e-14)


@pytest.mark.parametrize(
    "text", ["{kind: sgd, step_size: 0.2, batch_size: 8}", "{kind: adam, step_size: 0.01}", "auto"]
)
def test_a_network_learns_and_feels_the_tilt(text: str) -> None:
    objective = network()
    start = objective.initial(1)
    flat = run(Tilted(objective, np.zeros(objective.dimension)), text, start, epochs=30)
    assert flat.w.dtype == np.float32
    assert objective.value(flat.w) < 0.9 * objective.value(start)
    tilt = np.zeros(objective.dimension)
    tilt[0] = 0.5
    assert run(Tilted(objective, tilt), text, start, epochs=30).w[0] > flat.w[0] + 0.1
    again = run(Tilted(objective, np.zeros(objective.dimension)), text, start, epochs=30)
    np.testing.assert_array_equal(again.w, flat.w)
