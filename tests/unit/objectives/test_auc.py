"""The min-max function for the area under the ROC curve, and the scorers behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.auc import Moments, min_max
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import build_objective, dimension_of, initial_model
from fenchel.common.settings.objective import BinarySettings
from tests.messages import raises
from tests.slow import rest_slow
from tests.unit.objectives.problems import ADAPTER, make_objective, make_shard

SCORERS: list[dict[str, Any]] = [
    {"kind": "linear"},
    {"kind": "mlp", "hidden": 4},
    {"kind": "mlp", "hidden": 4, "biases": False},
    {"kind": "cnn"},
]
every_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=["linear", "mlp", "mlp without biases", "cnn"])


def section(**keys: Any) -> BinarySettings:
    found = ADAPTER.validate_python({"kind": "binary", "dtype": "float64", **keys})
    assert isinstance(found, BinarySettings)
    return found


def binary(shard: Shard, **keys: Any) -> BinaryObjective:
    objective = build_objective(section(**keys), shard)
    assert isinstance(objective, BinaryObjective)
    return objective


def mixtures(seed: int, sizes: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores and classes of several clients, each with both classes."""
    draw = np.random.default_rng(seed)
    scores, classes = [], []
    for size in sizes:
        positive = draw.random(size) < draw.uniform(0.1, 0.7)
        positive[:2] = True, False
        scores.append(draw.standard_normal(size) + positive * draw.uniform(-1, 2))
        classes.append(positive)
    return scores, classes


# F


@given(prior=st.floats(0.05, 0.95), seed=st.integers(0, 50))
def test_the_loss_of_the_authors_library_is_f_and_a_constant(prior: float, seed: int) -> None:
    """Its alpha is 1 more (docs/specifications/codasca.md, section 5.11, item 1)."""
    (scores,), (positive,) = mixtures(seed, [9])
    a, b, alpha = np.random.default_rng(seed).standard_normal(3)
    p, one_more = prior, 1 + alpha
    squares = np.where(positive, (1 - p) * (scores - a) ** 2, p * (scores - b) ** 2)
    tilt = p * (1 - p) + np.where(positive, -(1 - p) * scores, p * scores)
    theirs = squares + 2 * one_more * tilt - p * (1 - p) * one_more**2
    ours = min_max(p, scores, positive, np.array([a, b, alpha])).value
    np.testing.assert_allclose(theirs, ours + p * (1 - p), atol=1e-12)


@given(prior=st.floats(0.05, 0.95), seed=st.integers(0, 50))
def test_the_gradients_of_f_equal_finite_differences(prior: float, seed: int) -> None:
    (scores,), (positive,) = mixtures(seed, [9])
    auxiliary, step = np.random.default_rng(seed).standard_normal(3), 1e-5
    f = min_max(prior, scores, positive, auxiliary)
    for i, unit in enumerate(np.eye(3)):
        up, down = (min_max(prior, scores, positive, auxiliary + s * step * unit).value.mean() for s in (1, -1))
        assert f.gradient[i] == pytest.approx((up - down) / (2 * step), abs=1e-8)
    up, down = (min_max(prior, scores + s * step, positive, auxiliary).value for s in (1, -1))
    np.testing.assert_allclose(f.slopes, (up - down) / (2 * step), atol=1e-8)


def moments_of(scores: np.ndarray, positive: np.ndarray) -> Moments:
    masks = positive, ~positive
    return Moments(*(mask.mean() for mask in masks), *((scores * mask).mean() for mask in masks))


@given(seed=st.integers(0, 200), equal=st.booleans())
def test_the_saddle_is_where_the_class_means_are_and_tells_the_loss_of_all_pairs(seed: int, equal: bool) -> None:
    sizes = np.array([5, 20, 11])
    scores, classes = mixtures(seed, sizes.tolist())
    weights = np.full(3, 1 / 3) if equal else sizes / sizes.sum()
    mixture = Moments.mixture(zip(weights, map(moments_of, scores, classes), strict=True))
    prior, (up, down) = mixture.positives, mixture.means
    saddle = np.array([up, down, mixture.alpha(prior)])
    assert saddle[2] == pytest.approx(down - up, abs=1e-12)
    found = [min_max(prior, h, y, saddle) for h, y in zip(scores, classes, strict=True)]
    np.testing.assert_allclose(weights @ [f.gradient for f in found], 0, atol=1e-12)
    value = weights @ [f.value.mean() for f in found]
    pooled, positive, share = np.concatenate(scores), np.concatenate(classes), np.repeat(weights / sizes, sizes)
    losses = (1 - pooled[positive][:, None] + pooled[~positive]) ** 2
    pairs = share[positive][:, None] * share[~positive]
    assert np.average(losses, weights=pairs) == pytest.approx(1 + value / (prior * (1 - prior)), rel=1e-10)


@given(share=st.floats(0.01, 0.99), prior=st.floats(0.05, 0.95), seed=st.integers(0, 50))
def test_other_shares_of_the_same_classes_have_the_same_means(share: float, prior: float, seed: int) -> None:
    (scores,), (positive,) = mixtures(seed, [30])
    moments = moments_of(scores, positive)
    other = moments.in_shares(share)
    assert other.means == pytest.approx(moments.means)
    up, down = moments.means
    general = (prior * (1 - share) * down - (1 - prior) * share * up) / (prior * (1 - prior))
    assert other.alpha(prior) == pytest.approx(general, abs=1e-12)
    at_maximum = np.array([0.0, 0.0, moments.alpha(prior)])
    assert min_max(prior, scores, positive, at_maximum).gradient[2] == pytest.approx(0, abs=1e-12)


def test_one_class_alone_has_gradients_but_no_means() -> None:
    scores, positive = np.array([0.3, -1.0]), np.array([False, False])
    assert np.isfinite(min_max(0.2, scores, positive, np.zeros(3)).gradient).all()
    moments = moments_of(scores, positive)
    assert not moments.has_both_classes
    with raises(DataError):
        _ = moments.means


# The objective


@every_scorer
@pytest.mark.parametrize("output", ["none", "sigmoid", "l2"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_direction_equals_finite_differences(scorer: dict[str, Any], output: str, sparse: bool) -> None:
    if scorer["kind"] != "linear":
        pytest.importorskip("torch")
    objective = binary(make_shard(12, 16, 2, seed=1, sparse=sparse), scorer=scorer, l2=0.1)
    objective.output = output  # type: ignore[assignment]
    draw = np.random.default_rng(3)
    u = np.append(objective.initial(2) + 0.05 * draw.standard_normal(objective.dimension), [0.3, -0.2, 0.4])
    rows, prior, step = np.array([0, 3, 4, 4, 7, 9]), 0.3, 1e-5
    _, g = objective.saddle_gradient(u, rows, prior)

    def value(at: np.ndarray) -> float:
        return objective.saddle_gradient(at, rows, prior)[0] + objective.penalty(at[:-3])

    for _ in range(4):
        direction = draw.standard_normal(u.size)
        direction[:-3] /= np.linalg.norm(direction[:-3])
        slope = (value(u + step * direction) - value(u - step * direction)) / (2 * step)
        signed = direction * np.append(np.ones(u.size - 1), -1.0)
        assert g @ signed == pytest.approx(slope, rel=1e-6, abs=1e-8)


@every_scorer
def test_the_cross_entropy_is_that_of_the_raw_scores(scorer: dict[str, Any]) -> None:
    if scorer["kind"] != "linear":
        pytest.importorskip("torch")
    objective = binary(make_shard(12, 16, 2, seed=1), scorer=scorer, output="sigmoid", l2=0.1)
    draw = np.random.default_rng(4)
    w = objective.initial(2) + 0.05 * draw.standard_normal(objective.dimension)
    raw, signs = objective.scorer.scores(w, objective.features), np.where(objective.positive, 1, -1)
    assert objective.loss(w) == pytest.approx(np.mean(np.log1p(np.exp(-signs * raw))), rel=1e-12)
    metrics = objective.evaluate(w)
    assert metrics.loss == pytest.approx(objective.loss(w))
    assert metrics.correct == np.count_nonzero((raw > 0) == objective.positive)
    gradient, step = objective.gradient(w), 1e-6
    for _ in range(4):
        direction = draw.standard_normal(w.size)
        direction /= np.linalg.norm(direction)
        slope = (objective.value(w + step * direction) - objective.value(w - step * direction)) / (2 * step)
        assert gradient @ direction == pytest.approx(slope, abs=1e-8)


def test_a_linear_scorer_by_cross_entropy_is_logistic_regression() -> None:
    shard = make_shard(20, 5, 2, seed=5, sparse=True)
    ours = binary(shard, l2=0.2)
    theirs = make_objective(shard, kind="logistic", l2=0.2)
    w, rows = np.random.default_rng(6).standard_normal(5), np.array([3, 3, 8])
    assert ours.value(w) == pytest.approx(theirs.value(w), rel=1e-14)
    np.testing.assert_allclose(ours.batch_gradient(w, rows), theirs.batch_gradient(w, rows), atol=1e-15)
    assert ours.evaluate(w) == theirs.evaluate(w)


@pytest.mark.parametrize("output", ["none", "sigmoid", "l2"])
def test_scores_are_what_a_roc_curve_is_made_of(output: str) -> None:
    shard = make_shard(20, 5, 2, seed=5)
    objective = binary(shard)
    objective.output = output  # type: ignore[assignment]
    w = np.random.default_rng(6).standard_normal(5)
    for rows in (objective.all_rows, np.arange(3, 12)):
        scores, positive = objective.scores(w, rows)
        raw = np.asarray(shard.features[rows]) @ w
        expected = {"none": raw, "sigmoid": 1 / (1 + np.exp(-raw)), "l2": raw / np.linalg.norm(raw)}
        np.testing.assert_allclose(scores, expected[output], rtol=1e-13)
        np.testing.assert_array_equal(positive, shard.labels[rows] == 1)


def test_which_classes_are_positive_is_a_setting() -> None:
    shard = make_shard(30, 5, 4, seed=7)
    objective = binary(shard, positive=[3, 0])
    np.testing.assert_array_equal(objective.positive, np.isin(shard.labels, [0, 3]))
    assert objective.positives == np.count_nonzero(objective.positive)
    wrong: tuple[dict[str, Any], ...] = ({}, {"positive": [4]}, {"positive": [0, 1, 2, 3]})
    for keys in wrong:
        with raises(SettingsError, key="objective.positive" if keys else "objective.kind"):
            binary(shard, **keys)
    with raises(SettingsError, key="objective.kind"):
        binary(make_shard(10, 5, 0))


def test_a_linear_scorer_has_neither_a_norm_nor_a_device() -> None:
    with pytest.raises(ValidationError, match="a linear scorer begins with outputs of 0"):
        section(output="l2")
    with pytest.raises(ValidationError, match="device: cuda is for networks"):
        section(device="cuda")
    assert section(device="auto", scorer={"kind": "mlp"}).device == "auto"


def test_many_samples_go_through_a_network_in_pieces_and_give_the_same() -> None:
    flat = pytest.importorskip("fenchel.common.objectives.networks.flat")
    shard = make_shard(50, 5, 2, seed=8)
    at_once = binary(shard, scorer={"kind": "mlp"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "CHUNK", 7)
        in_pieces = binary(shard, scorer={"kind": "mlp"})
    u = np.append(at_once.initial(1), [0.1, 0.2, 0.3])
    value, whole = at_once.saddle_gradient(u, at_once.all_rows, 0.4)
    again, pieces = in_pieces.saddle_gradient(u, in_pieces.all_rows, 0.4)
    assert again == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-15)


def test_a_batch_of_which_all_outputs_are_zero_teaches_nothing() -> None:
    objective = binary(make_shard(8, 5, 2, seed=9))
    objective.output = "l2"
    _, g = objective.saddle_gradient(np.zeros(8), objective.all_rows, 0.4)
    np.testing.assert_array_equal(g[:5], 0)


def test_float32_stays_float32() -> None:
    pytest.importorskip("torch")
    for scorer in ({"kind": "linear"}, {"kind": "mlp"}):
        for output in ("none", "sigmoid"):
            objective = binary(make_shard(8, 5, 2), dtype="float32", scorer=scorer, output=output)
            u = np.zeros(objective.dimension + 3, np.float32)
            assert objective.saddle_gradient(u, objective.all_rows, 0.4)[1].dtype == np.float32
            assert objective.gradient(u[:-3]).dtype == np.float32


# Networks


@pytest.mark.parametrize(
    ("scorer", "features", "size"),
    [
        ({"kind": "mlp", "hidden": 32}, 64, 64 * 32 + 32 + 32 + 1),
        ({"kind": "mlp", "hidden": 32, "biases": False}, 64, 64 * 32 + 32),
        ({"kind": "cnn"}, 784, 794_310 - 9 * 501),
        # With 10 classes: 269 722 for CIFAR-10 without projections; 6 953 856 and 1024 + 1 for a head of one output.
        ({"kind": "resnet20"}, 3 * 32 * 32, 269_722 - 9 * 65),
        ({"kind": "densenet121"}, 3 * 32 * 32, 6_953_856 + 1025),
    ],
)
def test_a_scorer_has_one_output(scorer: dict[str, Any], features: int, size: int) -> None:
    pytest.importorskip("torch")
    assert dimension_of(section(scorer=scorer), features, 2) == size


@pytest.mark.parametrize(("kind", "side", "channels"), rest_slow([("resnet20", 8, 3), ("densenet121", 32, 1)]))
def test_deep_scorers_learn_and_have_no_state_beside_their_parameters(kind: str, side: int, channels: int) -> None:
    pytest.importorskip("torch")
    shard = make_shard(6, channels * side**2, 2, seed=1)
    assert 0 < shard.labels.sum() < 6
    objective = binary(shard, scorer={"kind": kind}, output="sigmoid")
    u = np.append(objective.initial(2), [0.3, 0.1, 0.0])
    value, g = objective.saddle_gradient(u, objective.all_rows, 0.4)
    again, same = objective.saddle_gradient(u, objective.all_rows, 0.4)
    assert again == value
    np.testing.assert_array_equal(same, g)
    slope = float(g[:-3] @ g[:-3])
    step = 1e-6 / np.sqrt(slope)
    down, _ = objective.saddle_gradient(u - step * np.append(g[:-3], np.zeros(3)), objective.all_rows, 0.4)
    assert (value - down) / step == pytest.approx(slope, rel=1e-3)
    assert objective.head == (65 if kind == "resnet20" else 1025)
    half = objective.scorer.scores(u[:-3], objective.features[:2])
    np.testing.assert_allclose(half, objective.scorer.scores(u[:-3], objective.features)[:2], rtol=1e-9)


def test_images_of_another_shape_are_refused() -> None:
    pytest.importorskip("torch")
    for scorer in ({"kind": "resnet20"}, {"kind": "densenet121"}):
        with raises(SettingsError, key="objective.scorer.kind"):
            dimension_of(section(scorer=scorer), 65, 2)


# A model to start from


def saved(folder: Path, model: np.ndarray) -> dict[str, Any]:
    np.savez(folder / "model.npz", model=model)
    return {"file": str(folder / "model.npz")}


def test_a_run_may_start_from_a_file(tmp_path: Path) -> None:
    w = np.arange(5.0)
    np.testing.assert_array_equal(initial_model(section(initial=saved(tmp_path, w)), 5, 2, 0), w)
    found = initial_model(section(initial=saved(tmp_path, w), dtype="float32"), 5, 2, 0)
    assert found.dtype == np.float32


def test_the_last_layer_may_be_drawn_anew(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    two = ADAPTER.validate_python({"kind": "mlp", "hidden": 4, "dtype": "float64"})
    trained = initial_model(two, 5, 3, seed=8)
    scorer = {"kind": "mlp", "hidden": 4, "biases": False}
    start = saved(tmp_path, trained) | {"fresh_head": True}
    found = initial_model(section(scorer=scorer, initial=start), 5, 2, seed=9)
    fresh = initial_model(section(scorer=scorer), 5, 2, seed=9)
    np.testing.assert_array_equal(found[:20], trained[:20])
    np.testing.assert_array_equal(found[20:], fresh[20:])
    assert found.size == 24


def test_files_that_hold_no_such_model_are_refused(tmp_path: Path) -> None:
    for wrong in (np.zeros(4), np.zeros((5, 1)), np.array([0, 1, np.nan, 2, 3])):
        initial = saved(tmp_path, wrong)
        with raises(SettingsError):
            initial_model(section(initial=initial), 5, 2, 0)
    initial = saved(tmp_path, np.zeros(5)) | {"fresh_head": True}
    with raises(SettingsError, key="objective.initial.fresh_head"):
        initial_model(section(initial=initial), 5, 2, 0)
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", weights=np.zeros(5))
    for name in ("none.npz", "text.npz", "other.npz"):
        with raises(SettingsError):
            initial_model(section(initial={"file": str(tmp_path / name)}), 5, 2, 0)
