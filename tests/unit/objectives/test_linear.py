"""Linear objectives: gradients, constants, dense and sparse alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.metrics import Metrics
from tests.messages import raises
from tests.unit.objectives.problems import clipped_by_a_loop, make_objective, make_shard

SMOOTH: list[tuple[dict[str, Any], int]] = [
    ({"kind": "squared"}, 0),
    ({"kind": "squared"}, 2),
    ({"kind": "logistic"}, 2),
    ({"kind": "smoothed-hinge", "smoothing": 0.5}, 2),
    ({"kind": "squared-hinge"}, 2),
    ({"kind": "softmax"}, 2),
    ({"kind": "softmax"}, 4),
    ({"kind": "one-sided-logistic"}, 2),
    ({"kind": "one-sided-logistic", "nonconvex": 0.5}, 4),
    ({"kind": "logistic", "nonconvex": 0.5}, 2),
]
EVERY = [*SMOOTH, ({"kind": "hinge"}, 2)]
smooth = pytest.mark.parametrize(("section", "classes"), SMOOTH, ids=str)
every = pytest.mark.parametrize(("section", "classes"), EVERY, ids=str)
dense_and_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
seeds = st.integers(0, 2**32 - 1)


@every
@dense_and_sparse
@given(seed=seeds)
def test_the_gradient_equals_finite_differences(section: dict[str, Any], classes: int, sparse: bool, seed: int) -> None:
    objective = make_objective(make_shard(classes=classes, seed=seed, sparse=sparse), l2=0.3, **section)
    w, u = np.random.default_rng(seed).standard_normal((2, objective.dimension))
    h = 1e-6
    slope = (objective.value(w + h * u) - objective.value(w - h * u)) / (2 * h)
    # A sample lies within h of a corner once in 100 000 draws; hypothesis repeats its draws.
    assert objective.gradient(w) @ u == pytest.approx(slope, rel=1e-4, abs=1e-5)


@smooth
@dense_and_sparse
def test_the_hessian_equals_differences_of_gradients(section: dict[str, Any], classes: int, sparse: bool) -> None:
    objective = make_objective(make_shard(classes=classes, seed=3, sparse=sparse), l2=0.3, **section)
    w, v = np.random.default_rng(4).standard_normal((2, objective.dimension))
    h = 1e-6
    bend = (objective.gradient(w + h * v) - objective.gradient(w - h * v)) / (2 * h)
    np.testing.assert_allclose(objective.hessian_vector(w, v), bend, atol=1e-7)


@every
@pytest.mark.parametrize("features", [5, 200], ids=["full columns", "mostly empty columns"])
def test_dense_and_sparse_shards_give_the_same_numbers(section: dict[str, Any], classes: int, features: int) -> None:
    shard = make_shard(20, features, classes, seed=5)
    x = np.array(shard.features)
    x[:, 7:] = 0
    dense = make_objective(replace(shard, features=x), l2=0.1, **section)
    sparse = make_objective(replace(shard, features=sp.csr_array(x)), l2=0.1, **section)
    w, v = np.random.default_rng(6).standard_normal((2, dense.dimension))
    rows = np.array([3, 1, 4, 1, 5])
    assert sparse.value(w) == pytest.approx(dense.value(w), rel=1e-13)
    assert sparse.smoothness == pytest.approx(dense.smoothness, rel=1e-11)
    assert sparse.evaluate(w).correct == dense.evaluate(w).correct
    np.testing.assert_allclose(sparse.gradient(w), dense.gradient(w), atol=1e-13)
    np.testing.assert_allclose(sparse.batch_gradient(w, rows), dense.batch_gradient(w, rows), atol=1e-13)
    np.testing.assert_allclose(sparse.hessian_vector(w, v), dense.hessian_vector(w, v), atol=1e-13)


@every
def test_a_row_that_occurs_twice_counts_twice(section: dict[str, Any], classes: int) -> None:
    objective = make_objective(make_shard(classes=classes), **section)
    w = np.random.default_rng(9).standard_normal(objective.dimension)
    one, other = (objective.batch_gradient(w, np.array([row])) for row in (0, 1))
    both = objective.batch_gradient(w, np.array([0, 1, 0]))
    np.testing.assert_allclose(both, (2 * one + other) / 3, atol=1e-14)


@smooth
@given(seed=seeds, reach=st.floats(1e-3, 10))
def test_smoothness_and_strong_convexity_bound_how_the_gradient_turns(
    section: dict[str, Any], classes: int, seed: int, reach: float
) -> None:
    objective = make_objective(make_shard(classes=classes, seed=seed), l2=0.1, **section)
    w, step = np.random.default_rng(seed).standard_normal((2, objective.dimension))
    step *= reach
    turn = objective.gradient(w + step) - objective.gradient(w)
    assert np.linalg.norm(turn) <= objective.smoothness * np.linalg.norm(step) * (1 + 1e-9)
    assert turn @ step >= (objective.strong_convexity - 1e-9) * (step @ step)


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_the_smoothness_is_reached_and_not_only_a_bound(kind: str) -> None:
    shard = make_shard(classes=2)
    objective = make_objective(shard, kind=kind, l2=0.1)
    x = np.asarray(shard.features)
    direction = np.linalg.svd(x)[2][0]
    curvature = direction @ objective.hessian_vector(np.zeros(5), direction)
    assert curvature == pytest.approx(objective.smoothness, rel=1e-9)


@pytest.mark.parametrize(("weight", "bound"), [(0.0, "smoothness"), (1.0, "strong_convexity")])
def test_the_constants_of_the_term_that_is_not_convex_are_reached(weight: float, bound: str) -> None:
    shard = make_shard(arrays=(np.zeros((2, 3)), [0, 1]), classes=2)
    objective = make_objective(shard, kind="logistic", l2=0.1, nonconvex=0.6)
    w, e = np.full(3, weight), np.eye(3)[1]
    assert e @ objective.hessian_vector(w, e) == pytest.approx(getattr(objective, bound), rel=1e-12)
    assert objective.smoothness == pytest.approx(1.3)
    assert objective.strong_convexity == pytest.approx(-0.2)


def test_the_term_that_is_not_convex_has_its_closed_form() -> None:
    objective = make_objective(make_shard(arrays=(np.zeros((2, 2)), [0, 1]), classes=2), kind="logistic", nonconvex=2)
    w = np.array([1.0, -3.0])
    assert objective.penalty(w) == pytest.approx(2 * (1 / 2 + 9 / 10))
    np.testing.assert_allclose(objective.gradient(w), [2 * 2 / 4, 2 * -6 / 100], atol=1e-15)
    assert objective.value(w) == pytest.approx(np.log(2) + 2.8)


def test_the_hinge_is_not_smooth() -> None:
    assert make_objective(make_shard(), kind="hinge", l2=0.1).smoothness == math.inf


@every
@dense_and_sparse
def test_float32_settings_give_float32_gradients_near_the_float64_ones(
    section: dict[str, Any], classes: int, sparse: bool
) -> None:
    shard = make_shard(classes=classes, sparse=sparse)
    single = make_objective(shard, l2=0.1, dtype="float32", **section)
    double = make_objective(shard, l2=0.1, **section)
    w = np.random.default_rng(10).standard_normal(single.dimension).astype(np.float32)
    rows = np.array([2, 0, 7])
    for gradient in (single.gradient(w), single.batch_gradient(w, rows), single.hessian_vector(w, w)):
        assert gradient.dtype == np.float32
    np.testing.assert_allclose(single.gradient(w), double.gradient(w.astype(np.float64)), atol=1e-5)
    assert single.initial(0).dtype == np.float32


@every
def test_equal_input_gives_equal_bits_and_is_not_changed(section: dict[str, Any], classes: int) -> None:
    shard = make_shard(classes=classes)
    w = np.random.default_rng(11).standard_normal(make_objective(shard, **section).dimension)
    for array in (w, shard.features, shard.labels):
        assert isinstance(array, np.ndarray)
        array.setflags(write=False)
    one, other = (make_objective(shard, l2=0.1, **section) for _ in range(2))
    rows = np.array([1, 2, 3])
    np.testing.assert_array_equal(one.batch_gradient(w, rows), other.batch_gradient(w, rows))
    np.testing.assert_array_equal(one.gradient(w), other.gradient(w))
    assert one.evaluate(w) == other.evaluate(w)


@every
@dense_and_sparse
def test_metrics_of_parts_add_up_to_the_metrics_of_the_whole(
    section: dict[str, Any], classes: int, sparse: bool
) -> None:
    shard = make_shard(classes=classes, sparse=sparse)
    objective = make_objective(shard, l2=0.1, **section)
    w = np.random.default_rng(12).standard_normal(objective.dimension)
    parts = [
        replace(shard, features=shard.features[rows], labels=shard.labels[rows], samples_held=rows)
        for rows in (np.arange(5), np.arange(5, 12))
    ]
    whole, total = objective.evaluate(w), Metrics.total(objective.evaluate(w, part) for part in parts)
    assert total == make_objective(parts[0], **section).evaluate(w) + objective.evaluate(w, parts[1])
    assert (total.correct, total.samples) == (whole.correct, whole.samples)
    assert total.loss == pytest.approx(whole.loss, rel=1e-14)
    assert objective.value(w) == pytest.approx(whole.loss + objective.penalty(w), rel=1e-14)


def test_accuracy_counts_the_sign_of_one_score_and_the_largest_of_several() -> None:
    two = make_shard(arrays=(np.array([[1.0], [-1.0], [2.0], [0.0]]), [1, 1, 0, 0]), classes=2)
    assert make_objective(two, kind="hinge").evaluate(np.ones(1)).accuracy == 0.5
    three = make_shard(arrays=(np.eye(3), [0, 1, 1]), classes=3)
    assert make_objective(three, kind="softmax").evaluate(np.eye(3).ravel()).accuracy == 2 / 3
    real = make_shard(classes=0)
    assert make_objective(real, kind="squared").evaluate(np.zeros(5)).accuracy is None


@every
def test_an_objective_without_samples_evaluates_other_shards_but_has_no_gradient(
    section: dict[str, Any], classes: int
) -> None:
    full = make_shard(classes=classes)
    empty = replace(full, features=full.features[:0], labels=full.labels[:0], samples_held=full.samples_held[:0])
    objective = make_objective(empty, l2=0.1, **section)
    w = np.ones(objective.dimension)
    assert objective.evaluate(w).samples == 0
    assert objective.evaluate(w, full) == make_objective(full, **section).evaluate(w)
    for ask in (objective.loss, objective.value, objective.gradient):
        with raises(DataError):
            ask(w)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        *((kind, 10) for kind in ("logistic", "hinge", "smoothed-hinge", "squared-hinge", "squared")),
        *((kind, 0) for kind in ("logistic", "softmax")),
    ],
)
def test_a_loss_refuses_labels_that_it_is_not_for(kind: str, classes: int) -> None:
    with raises(SettingsError, key="objective.kind"):
        make_objective(make_shard(classes=classes), kind=kind)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_a_label_that_is_not_a_class_is_a_fault_of_the_data(kind: str) -> None:
    with raises(DataError):
        make_objective(make_shard(arrays=(np.ones((2, 1)), [1, 2]), classes=2), kind=kind)


# Clipped gradients


@every
@dense_and_sparse
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), bound=st.floats(0.05, 4))
def test_linear_models_clip_as_a_loop_over_samples_does(
    section: dict[str, Any], classes: int, sparse: bool, seed: int, bound: float
) -> None:
    shard = make_shard(classes=classes, seed=seed, sparse=sparse)
    whole = make_objective(shard, l2=0.3, **section)
    bare = make_objective(shard, **{**section, "nonconvex": 0})
    w = np.random.default_rng(seed).standard_normal(whole.dimension)
    for rows in (np.array([3, 1, 4, 1]), whole.all_rows):
        wanted, _ = clipped_by_a_loop(bare, whole, w, rows, bound)
        np.testing.assert_allclose(whole.clipped_gradient(w, rows, bound), wanted, atol=1e-12)


@every
def test_a_bound_that_nobody_reaches_changes_no_bit(section: dict[str, Any], classes: int) -> None:
    objective = make_objective(make_shard(classes=classes), l2=0.3, **section)
    w = np.random.default_rng(2).standard_normal(objective.dimension)
    np.testing.assert_array_equal(objective.clipped_gradient(w, objective.all_rows, 1e6), objective.gradient(w))
