"""Solvers of smooth convex problems find the minimiser, as exactly as they were asked to."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.optim import Tilted
from fenchel.common.optim.newton import _hessian
from fenchel.common.optim.problem import Point
from tests.unit.optim.problems import EXACT, LOSSES, Quadratic, linear, minimiser, run, tilted


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", EXACT)
def test_every_solver_finds_the_minimiser(solver: str, loss: str, sparse: bool) -> None:
    problem = tilted(linear(loss, sparse=sparse))
    solved = run(problem, solver, gradient=1e-8)
    assert solved.gradient_norm <= 1e-8
    assert solved.gradient_norm == pytest.approx(np.linalg.norm(problem.gradient(solved.w)), abs=1e-14)
    assert np.linalg.norm(solved.w - minimiser(problem)) <= 1.1e-8 / problem.objective.strong_convexity


@settings(max_examples=60)
@given(
    solver=st.sampled_from(EXACT),
    loss=st.sampled_from(sorted(LOSSES)),
    sparse=st.booleans(),
    l2=st.sampled_from([0.1, 1.0]),
    delta=st.sampled_from([0.9, 0.25, 0.01, 1e-8]),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
)
def test_the_accuracy_that_was_asked_for_is_kept(
    solver: str, loss: str, sparse: bool, l2: float, delta: float, seed: int, size: float
) -> None:
    problem = tilted(linear(loss, sparse=sparse, l2=l2, seed=seed), seed, size)
    start = np.random.default_rng(seed).standard_normal(problem.dimension)
    solved = run(problem, solver, start, seed, accuracy=delta)
    best = minimiser(problem)
    assert np.sum((solved.w - best) ** 2) <= delta * np.sum((start - best) ** 2) + 1e-20 * np.sum(best**2)


@pytest.mark.parametrize("solver", EXACT)
def test_a_warm_start_at_the_minimiser_stays_there(solver: str) -> None:
    problem = tilted(linear("softmax"))
    best = run(problem, "newton", gradient=1e-15, steps=20).w
    again = run(problem, solver, best, accuracy=0.25)
    assert again.iterations == 0
    np.testing.assert_array_equal(again.w, best)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("solver", EXACT)
def test_the_floor_of_an_accuracy_follows_the_scale_of_the_data(solver: str, scale: float) -> None:
    """x -> c x, l2 -> c^2 l2, tilt -> c tilt: the solution is w/c, and just as exact."""
    usual, other = linear("logistic"), linear("logistic", scale=scale, l2=0.1 * scale**2)
    tilt = 0.3 * np.random.default_rng(1).standard_normal(usual.dimension)
    best = minimiser(Tilted(usual, tilt))
    solved = run(Tilted(other, scale * tilt), solver, accuracy=1e-24)
    assert np.linalg.norm(scale * solved.w - best) <= 1e-9 * np.linalg.norm(best)
    assert solved.iterations < 3000


@pytest.mark.parametrize("solver", EXACT)
def test_a_solve_ends_at_its_cap(solver: str) -> None:
    problem = tilted(linear("softmax", l2=0.01))
    capped = run(problem, solver, accuracy=1e-20, steps=2)
    asked = run(problem, solver, steps=2)
    assert capped.iterations == asked.iterations == 2
    np.testing.assert_array_equal(asked.w, capped.w)
    assert asked.gradient_norm == pytest.approx(np.linalg.norm(problem.gradient(asked.w)), rel=1e-12)


@pytest.mark.parametrize("solver", EXACT)
def test_the_solution_has_the_tilt_as_gradient_of_the_objective(solver: str) -> None:
    """Invariant 7: y = grad f(w(y))."""
    objective = linear("softmax")
    tilt = np.random.default_rng(3).standard_normal(objective.dimension)
    w = run(Tilted(objective, tilt), solver, gradient=1e-10).w
    np.testing.assert_allclose(objective.gradient(w), tilt, atol=1e-10)


@pytest.mark.parametrize("solver", EXACT)
def test_equal_arguments_give_equal_results_and_nothing_is_changed(solver: str) -> None:
    problem = tilted(linear("softmax", sparse=True))
    start = np.ones(problem.dimension)
    start.setflags(write=False)
    problem.tilt.setflags(write=False)
    first, second = (run(problem, solver, start, seed=5, accuracy=1e-3) for _ in range(2))
    np.testing.assert_array_equal(first.w, second.w)
    assert first.iterations == second.iterations
    assert not np.shares_memory(first.w, start)
    assert np.all(start == 1)


@pytest.mark.parametrize("solver", EXACT)
def test_single_precision_stays_single_and_goes_as_far_as_it_can(solver: str) -> None:
    problem = tilted(linear("softmax", dtype=np.float32))
    solved = run(problem, solver, accuracy=1e-30)
    assert solved.w.dtype == np.float32
    double = minimiser(tilted(linear("softmax")))
    assert np.linalg.norm(solved.w - double) <= 1e-4 * np.linalg.norm(double)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_hessian_is_made_of_its_products(loss: str, sparse: bool) -> None:
    draw = np.random.default_rng(2)
    objective = linear(loss, sparse=sparse)
    w, tilt, v = draw.standard_normal((3, objective.dimension))
    point = Point.of(Tilted(objective, tilt), w)
    hessian = _hessian(point)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-15)
    np.testing.assert_allclose(hessian @ v, objective.hessian_vector(w, v), atol=1e-13)
    np.testing.assert_allclose(point.hessian_vector(v), objective.hessian_vector(w, v), atol=1e-14)


@pytest.mark.parametrize("solver", ["newton", "newton-cg"])
def test_newton_solves_a_quadratic_in_one_step(solver: str) -> None:
    solved = run(Tilted(Quadratic([1.0, 4.0, 9.0]), np.ones(3)), solver, steps=1)
    if solver == "newton":
        np.testing.assert_allclose(solved.w, [1, 1 / 4, 1 / 9], rtol=1e-14)
    assert solved.gradient_norm < 0.25 * np.sqrt(3)


@pytest.mark.parametrize("solver", ["newton", "newton-cg", "lbfgs"])
def test_a_loss_without_curvature_in_places_is_no_obstacle(solver: str) -> None:
    """A squared hinge without a ridge, on data that can be separated: flat where all margins are wide."""
    objective = linear("squared-hinge", l2=0.0, samples=4, features=8)
    far = run(Tilted(objective, np.zeros(8)), solver, gradient=1e-10)
    assert far.gradient_norm <= 1e-10
    assert objective.loss(far.w) < 1e-15
    flat = run(Tilted(objective, np.zeros(8)), solver, 100 * far.w, steps=3)
    assert (flat.iterations, flat.gradient_norm) == (0, 0.0)


@pytest.mark.parametrize("solver", ["newton", "newton-cg"])
def test_steps_that_overshoot_are_cut(solver: str) -> None:
    """Logistic regression, far out on the flat side: a full Newton step would jump much too far."""
    objective = linear("logistic", l2=1e-4, scale=5.0)
    start = 4 * np.ones(objective.dimension)
    problem = Tilted(objective, np.zeros(objective.dimension))
    assert run(problem, solver, start, gradient=1e-9, steps=60).gradient_norm <= 1e-9
    values = [Point.of(problem, run(problem, solver, start, steps=k).w).value for k in range(1, 6)]
    assert all(after < before for before, after in pairwise(values))


def test_lbfgs_gets_past_the_rounding_errors_of_values() -> None:
    """At a gradient of 1e-13 values differ by 1e-26, relatively: no line search could see that."""
    problem = tilted(linear("softmax", l2=0.01, samples=40, features=6))
    solved = run(problem, "lbfgs", gradient=1e-13)
    assert np.linalg.norm(problem.gradient(solved.w)) <= 1.5e-13


@pytest.mark.parametrize("solver", ["newton", "newton-cg", "lbfgs"])
def test_what_rounding_forbids_ends_a_solve(solver: str) -> None:
    solved = run(tilted(linear("softmax")), solver, gradient=1e-30, steps=1000)
    assert solved.iterations < 60
    assert solved.gradient_norm < 1e-13


def test_acceleration_saves_steps_where_the_condition_is_bad() -> None:
    problem = Tilted(Quadratic(np.geomspace(1, 1e3, 30)), np.ones(30))
    plain = run(problem, "gradient", accuracy=1e-3)
    fast = run(problem, "{kind: gradient, accelerated: true}", accuracy=1e-3)
    assert fast.iterations < plain.iterations / 8
    flat = Tilted(Quadratic([0.0, 1.0]), np.array([0.0, 1.0]))  # not strongly convex
    assert run(flat, "{kind: gradient, accelerated: true, step_size: 0.3}", gradient=1e-8).gradient_norm <= 1e-8
