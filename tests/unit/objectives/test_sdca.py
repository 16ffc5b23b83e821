"""The solution on one machine: against the specification, scikit-learn and textbook coordinate ascent."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.losses import Hinge, Logistic, MarginLoss, SmoothedHinge, Squared, SquaredHinge
from fenchel.common.optim.sdca import DualProblem, Solution, ascend, settle, solve
from fenchel.common.randomness import generator
from tests.messages import raises
from tests.unit.objectives.problems import make_shard

LOSSES: list[MarginLoss] = [Hinge(), SmoothedHinge(1.0), SmoothedHinge(0.1), SquaredHinge(), Logistic(), Squared()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def accuracy(shard: Shard, w: Vector) -> float:
    return float(np.mean((shard.features @ w > 0) == (shard.labels == 1)))


@pytest.mark.parametrize(
    ("l2", "optimum", "train"), [(0.1, 0.35448369, 0.960), (0.01, 0.15444684, 0.985), (0.001, 0.07302129, 0.987)]
)
def test_the_hinge_optimum_is_that_of_the_specification(
    breast_cancer: Shard, l2: float, optimum: float, train: float
) -> None:
    found = solve(Hinge(), breast_cancer, l2)
    assert found.gap <= 1e-9
    assert found.primal_objective == pytest.approx(optimum, abs=6e-9)
    assert accuracy(breast_cancer, found.primal) == pytest.approx(train, abs=5e-4)


def test_the_logistic_optimum_is_that_of_the_specification(breast_cancer: Shard) -> None:
    found = solve(Logistic(), breast_cancer, 0.01)
    assert found.gap <= 1e-9
    assert found.primal_objective == pytest.approx(0.25161026, abs=6e-9)


@every_loss
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_sample_of_weight_two_counts_like_two_samples(loss: MarginLoss, sparse: bool) -> None:
    shard = make_shard(60, 5, 2, seed=4, sparse=sparse)
    twice = np.arange(60) < 20
    rows = np.concatenate([np.arange(60), np.flatnonzero(twice)])
    repeated = Shard(shard.features[rows], shard.labels[rows], 2, 5, np.arange(80))
    weights = np.where(twice, 2.0, 1.0) * 60 / 80
    found, expected = solve(loss, shard, 0.02, weights=weights), solve(loss, repeated, 0.02)
    assert found.gap <= 1e-9
    assert found.primal_objective == pytest.approx(expected.primal_objective, abs=2e-9)
    np.testing.assert_allclose(found.primal, expected.primal, atol=1e-3)


@pytest.mark.parametrize(
    ("loss", "name", "factor"), [(Hinge(), "hinge", 1), (SquaredHinge(), "squared_hinge", 2)], ids=str
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_model_is_that_of_liblinear(loss: MarginLoss, name: str, factor: int, sparse: bool) -> None:
    shard, l2 = make_shard(120, 8, 2, seed=3, sparse=sparse), 0.02
    # liblinear minimises |w|^2/2 + C sum(...), without the half in front of a squared hinge.
    oracle = LinearSVC(
        loss=name,
        C=1 / (l2 * 120 * factor),
        dual=True,
        fit_intercept=False,
        tol=1e-9,
        max_iter=1_000_000,
        random_state=0,
    ).fit(shard.features, shard.labels)
    np.testing.assert_allclose(solve(loss, shard, l2).primal, oracle.coef_[0], atol=1e-4)


def test_the_logistic_model_is_that_of_scikit_learn() -> None:
    shard, l2 = make_shard(120, 8, 2, seed=3), 0.02
    oracle = LogisticRegression(C=1 / (l2 * 120), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(shard.features, shard.labels)
    found = solve(Logistic(), shard, l2, tolerance=1e-12)
    np.testing.assert_allclose(found.primal, oracle.coef_[0], atol=1e-5)


def test_the_model_for_real_labels_is_that_of_ridge_regression() -> None:
    shard, l2 = make_shard(40, 6, 0, seed=2), 0.05
    x = np.asarray(shard.features)
    closed = np.linalg.solve(x.T @ x / 40 + l2 * np.eye(6), x.T @ shard.labels / 40)
    np.testing.assert_allclose(solve(Squared(), shard, l2, tolerance=1e-13).primal, closed, atol=1e-6)


def textbook(shard: Shard, l2: float, order: list[int]) -> Vector:
    """SDCA for the hinge as Shalev-Shwartz and Zhang print it (2013, section 6.2)."""
    x, y = np.asarray(shard.features), np.where(shard.labels == 1, 1.0, -1.0)
    n = len(y)
    alpha, w = np.zeros(n), np.zeros(x.shape[1])
    for i in order:
        quotient = (1 - x[i] @ w * y[i]) / (x[i] @ x[i] / (l2 * n)) + alpha[i] * y[i]
        delta = y[i] * max(0, min(1, quotient)) - alpha[i]
        alpha[i] += delta
        w += delta * x[i] / (l2 * n)
    return alpha


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_passes_equal_textbook_sdca_with_the_same_picks(breast_cancer: Shard, sparse: bool) -> None:
    problem = DualProblem.of(Hinge(), breast_cancer, 0.01)
    if sparse:
        problem = DualProblem(Hinge(), sp.csr_array(breast_cancer.features), problem.targets, 0.01)
    order = np.random.default_rng(0).integers(0, 455, 2000)
    dual, w = ascend(problem, np.zeros(455), np.zeros(30), order, problem.curvature)
    np.testing.assert_allclose(dual, textbook(breast_cancer, 0.01, order.tolist()), rtol=0, atol=1e-13)
    np.testing.assert_allclose(w, problem.primal(dual), rtol=0, atol=1e-12)


def by_passes_alone(loss: MarginLoss, shard: Shard, l2: float, tolerance: float) -> Solution:
    """Coordinate ascent without the steps on faces."""
    problem = DualProblem.of(loss, shard, l2)
    dual: Vector = np.zeros(problem.samples)
    for passes in range(3000):
        w = problem.primal(dual)
        found = Solution(dual, w, problem.primal_objective(w), problem.dual_objective(dual, w), passes)
        if found.gap <= tolerance:
            return found
        order = generator(0, "sdca", passes).permutation(problem.samples)  # as in solve
        dual, _ = ascend(problem, dual, w, order, problem.curvature)
    raise AssertionError(f"coordinate ascent did not converge: {found.gap}")


@every_loss
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_steps_on_faces_change_the_time_but_not_the_solution(loss: MarginLoss, sparse: bool) -> None:
    shard = make_shard(60, 12, 2, seed=5, sparse=sparse)
    quick, plain = solve(loss, shard, 0.01), by_passes_alone(loss, shard, 0.01, 1e-9)
    assert quick.gap <= 1e-9
    assert quick.primal_objective == pytest.approx(plain.primal_objective, abs=2e-9)
    assert quick.passes <= plain.passes
    # P is l2-strongly convex, so a gap bounds the distance: |w - w*|^2 <= 2 gap / l2.
    np.testing.assert_allclose(quick.primal, plain.primal, atol=1e-3)


@every_loss
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), l2=st.sampled_from([1e-3, 0.1, 3.0]), sparse=st.booleans())
def test_every_step_keeps_the_dual_feasible_and_never_lowers_it(
    loss: MarginLoss, seed: int, l2: float, sparse: bool
) -> None:
    problem = DualProblem.of(loss, make_shard(seed=seed, sparse=sparse), l2)
    draw = np.random.default_rng(seed)
    dual: Vector = problem.targets * draw.random(problem.samples)
    lowest = -np.inf
    for turn in range(6):
        w = problem.primal(dual)
        value = problem.dual_objective(dual, w)
        assert value >= lowest - 1e-12  # minus infinity outside the domain
        primal = problem.primal_objective(w)
        assert primal >= value - 1e-12 * max(1, abs(primal))
        lowest = value
        if turn % 2:
            dual = settle(problem, dual)
        else:
            dual, _ = ascend(problem, dual, w, draw.permutation(problem.samples), problem.curvature)


def test_empty_rows_are_no_obstacle() -> None:
    x = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    labels = np.array([1, 0, 1, 0])
    shard = Shard(x, labels, 2, 2, np.arange(4))
    for loss in LOSSES:
        found = solve(loss, shard, 0.1)
        assert found.gap <= 1e-9
        zeros, y = np.zeros(2), np.array([-1.0, 1.0])
        np.testing.assert_allclose(found.dual[1:3], -loss.derivative(zeros, y), atol=1e-12)


def test_the_seed_decides_the_order_and_nothing_else(breast_cancer: Shard) -> None:
    first, again, other = (solve(Hinge(), breast_cancer, 0.01, seed=seed) for seed in (0, 0, 1))
    assert first.dual.tobytes() == again.dual.tobytes()
    assert first.dual.tobytes() != other.dual.tobytes()
    assert other.primal_objective == pytest.approx(first.primal_objective, abs=1e-9)


def test_a_problem_that_has_no_such_dual_is_refused() -> None:
    with raises(SettingsError):
        solve(Hinge(), make_shard(), 0.0)
    with raises(SettingsError, key="objective.kind"):
        solve(Hinge(), make_shard(classes=3), 0.1)
    with raises(DataError):
        solve(Hinge(), make_shard(samples=0), 0.1)
