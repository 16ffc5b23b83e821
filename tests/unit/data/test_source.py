"""From settings to shards: preparation, test split, held-out samples, own files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from fenchel.common.data import own_file
from fenchel.common.data.npz import write_npz
from fenchel.common.data.samples import DataSet, Samples
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError
from fenchel.common.settings.data import DataSettings
from tests.messages import raises


def source(seed: int = 0, **keys: Any) -> DataSource:
    return DataSource.open(DataSettings.model_validate(keys), seed)


def load_own(
    path: Path, label: str | None = None, *, identifier: str | None = None, dtype: Any = np.float64, **keys: Any
) -> Shard:
    settings = DataSettings.model_validate({"name": "own"} | keys)
    return own_file.load_own(path, settings, label=label, identifier=identifier, dtype=dtype)


def array(shard: Shard | None) -> Any:
    assert shard is not None
    return shard.features.toarray() if isinstance(shard.features, sp.csr_array) else shard.features


def test_digits_is_split_as_the_prototypes_of_the_papers_did() -> None:
    digits = source(name="digits", scale="unit-interval", bias=1.0)
    test = digits.test()
    assert test is not None
    assert (digits.problem.samples, test.samples, digits.problem.features) == (1437, 360, 65)
    assert (array(test)[:, 64] == 1.0).all()
    everything = np.concatenate([array(digits.training()), array(test)])[:, :64]
    original = load_digits().data / 16
    assert sorted(map(tuple, everything)) == sorted(map(tuple, original))


AS_SCIKIT_LEARN: dict[str, Any] = {
    "name": "breast_cancer",
    "classes": ["malignant", "benign"],
    "test_split": "scikit-learn",
}


@pytest.mark.parametrize(("seed", "fraction"), [(0, 0.2), (7, 0.33)])
def test_a_test_set_can_be_the_one_that_scikit_learn_draws(seed: int, fraction: float) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=fraction, random_state=seed, stratify=y)
    keys = AS_SCIKIT_LEARN | {"test_fraction": fraction}
    for data in (source(**keys, test_seed=seed), source(seed, **keys)):
        test = data.test()
        assert test is not None
        np.testing.assert_array_equal(array(data.training()), x)
        np.testing.assert_array_equal(data.training().labels, y)
        np.testing.assert_array_equal(array(test), x_test)
        np.testing.assert_array_equal(test.labels, y_test)


def test_a_seed_of_its_own_fixes_the_test_set_of_runs_with_different_seeds() -> None:
    for split in ("fenchel", "scikit-learn"):
        keys: dict[str, Any] = {"name": "breast_cancer", "test_split": split, "test_seed": 5}
        np.testing.assert_array_equal(array(source(1, **keys).test()), array(source(2, **keys).test()))
        del keys["test_seed"]
        assert not np.array_equal(array(source(1, **keys).test()), array(source(2, **keys).test()))
        np.testing.assert_array_equal(array(source(5, **keys).test()), array(source(1, **keys, test_seed=5).test()))


def test_scikit_learn_draws_real_labels_without_regard_to_them(tmp_path: Path) -> None:
    x, y = np.arange(17.0)[:, None], np.arange(17.0) / 2
    write_npz(tmp_path / "x.npz", DataSet(Samples(x, y)))
    data = source(file=tmp_path / "x.npz", task="regression", test_split="scikit-learn", test_seed=3)
    expected = train_test_split(x, test_size=0.2, random_state=3)
    np.testing.assert_array_equal(array(data.training()), expected[0])
    np.testing.assert_array_equal(array(data.test()), expected[1])


def test_without_scikit_learn_its_test_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "x.npz", DataSet(Samples(np.eye(6), np.arange(6) % 2)))
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    with raises(DataError, key="data.test_split"):
        source(file=tmp_path / "x.npz", test_split="scikit-learn")


def test_a_test_set_that_scikit_learn_cannot_draw_is_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", DataSet(Samples(np.ones((9, 1)), np.array([0] * 8 + [1]))))
    with raises(DataError, key="data.test_split"):
        source(file=tmp_path / "x.npz", test_split="scikit-learn")
    with raises(DataError, key="data.test_split"):
        source(1 << 32, **AS_SCIKIT_LEARN)


@pytest.mark.parametrize("keys", [{"test_fraction": 0.5}, {"test_split": "scikit-learn"}, {"test_seed": 0}], ids=str)
def test_a_published_test_set_is_not_drawn_again(tmp_path: Path, keys: dict[str, Any]) -> None:
    part = Samples(np.ones((4, 1)), np.array([0, 1, 0, 1]))
    write_npz(tmp_path / "x.npz", DataSet(part, part))
    (key,) = keys
    with raises(DataError, key=f"data.{key}"):
        source(file=tmp_path / "x.npz", **keys)


def test_class_names_are_sorted_and_labels_are_their_indices() -> None:
    data = source(name="breast_cancer", test_fraction=0)
    assert data.problem.class_names == ("benign", "malignant")
    assert data.labels.dtype == np.int64
    np.testing.assert_array_equal(data.labels, 1 - load_breast_cancer().target)


def test_standard_uses_the_training_mean_and_population_deviation() -> None:
    raw, scaled = source(name="breast_cancer"), source(name="breast_cancer", scale="standard")
    oracle = StandardScaler().fit(array(raw.training()))
    np.testing.assert_allclose(array(scaled.training()), oracle.transform(array(raw.training())), atol=1e-10)
    np.testing.assert_allclose(array(scaled.test()), oracle.transform(array(raw.test())), atol=1e-10)
    assert (array(source(name="digits", scale="standard").training())[:, 0] == 0).all(), "a constant column"


def test_steps_apply_in_the_order_given() -> None:
    raw = array(source(name="breast_cancer").training())
    last_rows = array(source(name="breast_cancer", scale=["standard", "unit-rows"]).training())
    np.testing.assert_allclose(np.linalg.norm(last_rows, axis=1), 1.0)
    last_standard = array(source(name="breast_cancer", scale=["unit-rows", "standard"]).training())
    rows = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(last_standard, (rows - rows.mean(0)) / rows.std(0), atol=1e-8)


@pytest.mark.parametrize("steps", ["unit-interval", ["standard", "unit-interval"]], ids=str)
def test_unit_interval_spans_the_training_columns_that_are_not_pixels(steps: str | list[str]) -> None:
    scaled = array(source(name="breast_cancer", scale=steps).training())
    np.testing.assert_allclose(scaled.min(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(scaled.max(axis=0), 1)


def test_shards_are_rows_of_the_training_set_in_the_dtype_asked_for() -> None:
    data = source(name="digits", scale=["standard", "unit-rows"], bias=2.0)
    everything = data.training(np.float32)
    seen = []
    for client in range(7):
        shard = data.shard(client, 7, np.float32)
        assert shard.features.dtype == np.float32
        np.testing.assert_array_equal(shard.features, everything.features[shard.samples_held])
        np.testing.assert_array_equal(shard.labels, everything.labels[shard.samples_held])
        seen.append(shard.samples_held)
    assert sorted(np.concatenate(seen).tolist()) == list(range(1437))


def test_a_held_out_part_and_the_shard_share_nothing_and_miss_nothing() -> None:
    keys: dict[str, Any] = {"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 40}}
    whole, divided = source(**keys), source(**keys, holdout=0.25)
    for client in range(10):
        kept, held_out = divided.shard(client, 10), divided.holdout(client, 10)
        assert held_out is not None
        assert whole.holdout(client, 10) is None
        both = np.concatenate([kept.samples_held, held_out.samples_held])
        np.testing.assert_array_equal(np.sort(both), whole.shard(client, 10).samples_held)
        assert held_out.samples == round(0.25 * len(both))
    few = source(name="digits", samples=12, holdout=0.9)  # a sample for each: all are trained on
    assert (few.sizes(12), few.holdout(0, 12)) == ([1] * 12, None)
    with raises(DataError, client="12"):
        few.shard(12, 12)


def test_test_set_and_subsample_have_the_classes_in_proportion() -> None:
    test = source(name="breast_cancer").test()
    assert test is not None
    assert np.bincount(test.labels).tolist() == [72, 42]
    assert np.bincount(source(name="digits", samples=50).labels).tolist() == [5] * 10
    data = source(name="digits", test_fraction=0, binarise={"positive": [0, 2, 4, 6, 8]})
    np.testing.assert_array_equal(data.labels, load_digits().target % 2 == 0)


def test_the_cells_of_a_grid_make_up_the_matrix() -> None:
    kind = {"kind": "grid", "sample_groups": 3, "feature_groups": 4, "layout": "quadrants"}
    data = source(name="digits", scale="unit-interval", bias=10.0, partition=kind)
    everything = data.training()
    rebuilt = np.full(everything.features.shape, np.nan)
    for client in range(12):
        shard = data.shard(client, 12)
        assert shard.features_held is not None
        assert shard.total_features == 65
        rebuilt[np.ix_(shard.samples_held, shard.features_held)] = array(shard)
    np.testing.assert_array_equal(rebuilt, everything.features)


@pytest.mark.parametrize("bias", [None, 10.0])
def test_the_values_of_a_ragged_partition_add_up_to_the_matrix(bias: float | None) -> None:
    kind = {"kind": "ragged", "sample_groups": 3, "feature_groups": 5}
    data = source(name="digits", scale=["unit-interval", "unit-rows"], bias=bias, partition=kind)
    everything = data.training()
    total = np.zeros(everything.features.shape)
    for client in range(15):
        shard = data.shard(client, 15)
        assert shard.features_held is not None
        np.testing.assert_array_equal(shard.labels, everything.labels[shard.samples_held])
        total[np.ix_(shard.samples_held, shard.features_held)] += array(shard)
    np.testing.assert_array_equal(total, everything.features)


def test_sparse_features_stay_sparse_through_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    matrix = sp.csr_array(np.where(rng.random((40, 30)) < 0.2, rng.random((40, 30)) * 5, 0))
    write_npz(tmp_path / "words" / "data.npz", DataSet(Samples(matrix, np.arange(40) % 2)))
    keys: dict[str, Any] = {"name": "words", "test_fraction": 0}
    data = source(**keys, scale=["unit-interval", "unit-rows"], bias=1.0)
    shard = data.training()
    assert isinstance(shard.features, sp.csr_array)
    dense = matrix.toarray() / np.maximum(matrix.toarray().max(axis=0), 1e-300)
    norms: Any = np.linalg.norm(dense, axis=1, keepdims=True)
    expected: Any = np.hstack([dense / np.where(norms > 0, norms, 1), np.ones((40, 1))])
    np.testing.assert_allclose(shard.features.toarray(), expected, rtol=1e-14)
    with raises(DataError, key="data.scale"):
        source(**keys, scale="standard")


def test_images_stay_bytes_in_memory(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", X=pixels, y=np.arange(20) % 2)
    data = source(file=tmp_path / "x.npz", test_fraction=0, scale="unit-interval")
    assert data._train.features.dtype == np.uint8
    assert data.problem.image == (1, 5, 5)
    np.testing.assert_array_equal(data.training().features, pixels.reshape(20, 25) / 255)


def test_regression_labels_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,y\n" + "".join(f"{i},{i / 2}\n" for i in range(20)))
    data = source(file=tmp_path / "x.csv", task="regression", partition={"kind": "label-shards"})
    assert data.problem.classes == 0
    assert data.labels.dtype == np.float64
    assert data.shard(0, 3).samples in (5, 6)
    with raises(DataError, source=tmp_path / "x.csv", key="data.task"):
        source(file=tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"name": "digits", "samples": 2000}, "samples"),
        ({"name": "digits", "test_fraction": 0.9999}, "test_fraction"),
        ({"name": "digits", "binarise": {"positive": ["ten"]}}, "binarise.positive"),
        ({"name": "digits", "binarise": {"positive": list(range(10))}}, "binarise.positive"),
        ({"name": "digits", "classes": [1, 2]}, "classes"),
        ({"name": "breast_cancer", "task": "regression"}, "task"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused_by_key(keys: dict[str, Any], key: str) -> None:
    with raises(DataError, key=f"data.{key}"):
        source(**keys)


def test_an_own_file_is_one_shard_with_sorted_class_names_or_those_of_the_run(tmp_path: Path) -> None:
    hospital = tmp_path / "hospital.csv"
    hospital.write_text("age,dose,outcome\n3,4,well\n6,8,ill\n0,0,well\n")
    shard = load_own(hospital, "outcome", scale=["unit-rows"], bias=1.0, dtype=np.float32)
    expected: Any = [[0.6, 0.8, 1], [0.6, 0.8, 1], [0, 0, 1]]
    np.testing.assert_allclose(array(shard), expected, rtol=1e-6)
    assert shard.labels.tolist() == [1, 0, 1]
    assert (shard.classes, shard.total_features, shard.features.dtype) == (2, 3, np.dtype(np.float32))
    assert (shard.sample_ids, shard.identifiers) == (None, ("0", "1", "2"))
    shard = load_own(hospital, "outcome", classes=["dead", "ill", "well"])
    assert (shard.labels.tolist(), shard.classes) == ([2, 1, 2], 3)
    for step in ("standard", "unit-interval"):
        with raises(DataError, source=hospital, key="data.scale"):
            load_own(hospital, "outcome", scale=[step])


@pytest.mark.parametrize(
    ("classes", "labels"), [(["00", "01", "02"], [2, 1]), (["2", "01"], [0, 1]), (["-1", "01", "1", "2"], [3, 2])]
)
def test_numbers_are_of_a_class_with_leading_zeros(tmp_path: Path, classes: list[str], labels: list[int]) -> None:
    hospital = tmp_path / "hospital.csv"
    hospital.write_text("age,stage\n3,02\n6,01\n")
    assert load_own(hospital, "stage", classes=classes).labels.tolist() == labels


def test_the_same_settings_give_the_same_bits() -> None:
    keys: dict[str, Any] = {"name": "digits", "scale": "standard", "holdout": 0.2, "samples": 500}
    first, second, other = source(3, **keys), source(3, **keys), source(4, **keys)
    assert array(first.shard(1, 5)).tobytes() == array(second.shard(1, 5)).tobytes()
    assert array(first.shard(1, 5)).tobytes() != array(other.shard(1, 5)).tobytes()


def test_own_images_may_be_scaled_by_the_largest_pixel_but_only_as_the_first_step(tmp_path: Path) -> None:
    pixels = np.full((4, 5, 5), 51, np.uint8)
    np.savez(tmp_path / "x.npz", X=pixels, y=np.arange(4) % 2)
    assert (array(load_own(tmp_path / "x.npz", scale=["unit-interval"])) == 0.2).all()
    with raises(DataError, key="data.scale"):
        load_own(tmp_path / "x.npz", scale=["unit-rows", "unit-interval"])
