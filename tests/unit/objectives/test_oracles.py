"""Minimisers and optimal values, against scikit-learn, scipy and the tables of the specifications."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.losses import Hinge, Logistic, MarginLoss, SmoothedHinge, Squared, SquaredHinge
from fenchel.common.objectives.objective import Objective

MakeShard = Callable[..., Shard]
MakeObjective = Callable[..., Objective]


def minimizer(objective: Objective) -> Vector:
    found = minimize(
        objective.value,
        objective.initial(0),
        jac=objective.gradient,
        method="L-BFGS-B",
        options={"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-10},
    )
    result: Vector = found.x
    return result


@pytest.mark.parametrize(("kind", "classes"), [("logistic", 2), ("softmax", 4)])
def test_the_minimizer_equals_logistic_regression_of_scikit_learn(
    make_shard: MakeShard, make_objective: MakeObjective, kind: str, classes: int
) -> None:
    shard = make_shard(80, 6, classes, seed=1)
    objective = make_objective(shard, kind=kind, l2=0.05)
    oracle = LogisticRegression(C=1 / (0.05 * 80), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(shard.features, shard.labels)
    np.testing.assert_allclose(minimizer(objective), oracle.coef_.ravel(), atol=1e-5)
    assert objective.evaluate(oracle.coef_.ravel()).accuracy == oracle.score(shard.features, shard.labels)


def test_the_minimizer_of_the_squared_loss_equals_ridge_regression(
    make_shard: MakeShard, make_objective: MakeObjective
) -> None:
    shard = make_shard(40, 6, 0, seed=2)
    objective = make_objective(shard, kind="squared", l2=0.05)
    x = np.asarray(shard.features)
    closed = np.linalg.solve(x.T @ x / 40 + 0.05 * np.eye(6), x.T @ shard.labels / 40)
    np.testing.assert_allclose(minimizer(objective), closed, atol=1e-6)
    np.testing.assert_allclose(objective.gradient(closed), 0, atol=1e-14)
    np.testing.assert_allclose(Ridge(alpha=0.05 * 40, fit_intercept=False).fit(x, shard.labels).coef_, closed)


def test_the_logistic_optimum_on_breast_cancer_is_the_one_of_the_specification(
    breast_cancer: Shard, make_objective: MakeObjective
) -> None:
    objective = make_objective(breast_cancer, kind="logistic", l2=0.01)
    assert breast_cancer.samples == 455
    assert objective.value(minimizer(objective)) == pytest.approx(0.25161026, abs=1e-8)


@pytest.mark.parametrize(
    ("l2", "optimum", "accuracy"), [(0.1, 0.35448369, 0.960), (0.01, 0.15444684, 0.985), (0.001, 0.07302129, 0.987)]
)
def test_the_hinge_optimum_on_breast_cancer_is_the_one_of_the_specification(
    breast_cancer: Shard, make_objective: MakeObjective, l2: float, optimum: float, accuracy: float
) -> None:
    objective = make_objective(breast_cancer, kind="hinge", l2=l2)
    oracle = LinearSVC(
        loss="hinge", C=1 / (l2 * 455), fit_intercept=False, tol=1e-8, max_iter=1_000_000, random_state=0
    )
    w = oracle.fit(breast_cancer.features, breast_cancer.labels).coef_[0]
    assert objective.value(w) == pytest.approx(optimum, abs=1e-6)
    assert objective.evaluate(w).accuracy == pytest.approx(accuracy, abs=5e-4)


def test_the_softmax_example_of_the_feddcd_specification_has_its_values_and_constants(
    make_shard: MakeShard, make_objective: MakeObjective
) -> None:
    objectives = []
    for i in range(4):
        j, k = np.meshgrid(np.arange(4 + i), np.arange(3), indexing="ij")
        x = ((7 * i + 5 * j + 3 * k**2 + i * j * k) % 11) / 5 - 1
        labels = (i + np.arange(4 + i) % 2) % 3
        objectives.append(make_objective(make_shard(arrays=(x, labels), classes=3), kind="softmax", l2=0.1))
    smoothness = [objective.smoothness for objective in objectives]
    assert smoothness == pytest.approx([0.428854114, 0.526313685, 0.351334640, 0.640106198], abs=1e-9)
    assert [objective.strong_convexity for objective in objectives] == [0.1] * 4

    def total(w: Vector) -> float:
        return sum(objective.value(w) for objective in objectives)

    def slope(w: Vector) -> Vector:
        result: Vector = np.sum([objective.gradient(w) for objective in objectives], axis=0)
        return result

    assert total(np.zeros(9)) == pytest.approx(4.394449154672, abs=1e-12)
    best = minimize(
        total, objectives[0].initial(0), jac=slope, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-9}
    )
    assert best.fun == pytest.approx(3.723066979916, abs=1e-11)
    assert best.x[:3] == pytest.approx([0.67390466, -0.28688123, -0.31487257], abs=1e-7)


@pytest.mark.parametrize(
    ("loss", "section"),
    [
        (Hinge(), {"kind": "hinge"}),
        (SmoothedHinge(0.5), {"kind": "smoothed-hinge", "smoothing": 0.5}),
        (SquaredHinge(), {"kind": "squared-hinge"}),
        (Logistic(), {"kind": "logistic"}),
        (Squared(), {"kind": "squared"}),
    ],
    ids=str,
)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_dual_value_exceeds_a_primal_value(
    make_shard: MakeShard, make_objective: MakeObjective, loss: MarginLoss, section: dict[str, str | float], seed: int
) -> None:
    shard, l2 = make_shard(classes=2, seed=seed), 0.2
    draw = np.random.default_rng(seed)
    y = np.where(shard.labels == 1, 1.0, -1.0)
    alpha = y * draw.random(shard.samples)
    image = np.asarray(shard.features).T @ alpha / (l2 * shard.samples)
    dual = -l2 / 2 * image @ image - loss.conjugate(alpha, y).mean()
    objective = make_objective(shard, l2=l2, **section)
    for w in (image, draw.standard_normal(image.size)):
        assert dual <= objective.value(w) + 1e-12


def test_primal_and_dual_optimum_are_equal_for_the_logistic_loss(
    breast_cancer: Shard, make_objective: MakeObjective
) -> None:
    objective, l2 = make_objective(breast_cancer, kind="logistic", l2=0.01), 0.01
    w, x = minimizer(objective), np.asarray(breast_cancer.features)
    y = np.where(breast_cancer.labels == 1, 1.0, -1.0)
    alpha = -Logistic().derivative(x @ w, y)
    image = x.T @ alpha / (l2 * 455)
    dual = -l2 / 2 * image @ image - Logistic().conjugate(alpha, y).mean()
    assert dual == pytest.approx(objective.value(w), abs=1e-9)
    np.testing.assert_allclose(image, w, atol=1e-5)
