"""Minimisers and optimal values, against scikit-learn, scipy and the tables of the specifications."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.objective import Objective
from tests.unit.objectives.problems import make_objective, make_shard


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
def test_the_minimizer_equals_logistic_regression_of_scikit_learn(kind: str, classes: int) -> None:
    shard = make_shard(80, 6, classes, seed=1)
    objective = make_objective(shard, kind=kind, l2=0.05)
    oracle = LogisticRegression(C=1 / (0.05 * 80), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(shard.features, shard.labels)
    np.testing.assert_allclose(minimizer(objective), oracle.coef_.ravel(), atol=1e-5)
    assert objective.evaluate(oracle.coef_.ravel()).accuracy == oracle.score(shard.features, shard.labels)


def test_the_minimizer_of_the_squared_loss_equals_ridge_regression() -> None:
    shard = make_shard(40, 6, 0, seed=2)
    objective = make_objective(shard, kind="squared", l2=0.05)
    x = np.asarray(shard.features)
    closed = np.linalg.solve(x.T @ x / 40 + 0.05 * np.eye(6), x.T @ shard.labels / 40)
    np.testing.assert_allclose(minimizer(objective), closed, atol=1e-6)
    np.testing.assert_allclose(objective.gradient(closed), 0, atol=1e-14)
    np.testing.assert_allclose(Ridge(alpha=0.05 * 40, fit_intercept=False).fit(x, shard.labels).coef_, closed)


@pytest.mark.parametrize(
    ("l2", "optimum", "accuracy"), [(0.1, 0.35448369, 0.960), (0.01, 0.15444684, 0.985), (0.001, 0.07302129, 0.987)]
)
def test_the_hinge_optimum_on_breast_cancer_is_the_one_of_the_specification(
    breast_cancer: Shard, l2: float, optimum: float, accuracy: float
) -> None:
    objective = make_objective(breast_cancer, kind="hinge", l2=l2)
    oracle = LinearSVC(
        loss="hinge", C=1 / (l2 * 455), fit_intercept=False, tol=1e-8, max_iter=1_000_000, random_state=0
    )
    w = oracle.fit(breast_cancer.features, breast_cancer.labels).coef_[0]
    assert objective.value(w) == pytest.approx(optimum, abs=1e-6)
    assert objective.evaluate(w).accuracy == pytest.approx(accuracy, abs=5e-4)
