"""Real data of the folder that FENCHEL_DATA names: public files as they are, and rebuilds of them, imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from fenchel.common.data.catalogue import import_files, load
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.data import DataSettings
from fenchel.common.settings.objective import BinarySettings


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real() -> Path:
    folder = os.environ.get("FENCHEL_DATA")
    if not folder:
        pytest.skip("FENCHEL_DATA is not set, so there is no real data to read")
    return Path(folder)


def need(path: Path) -> None:
    if not path.is_dir():
        pytest.skip(f"FENCHEL_DATA holds no folder {path.name}")


def opened(positive: list[int] | None = None, **keys: Any) -> DataSource:
    return DataSource.open(DataSettings.model_validate(keys), 0, positive)


def imported(folder: Path, name: str, **arrays: NDArray[Any]) -> None:
    """Import arrays under a name."""
    # The stubs think that an array could be passed for the keyword allow_pickle.
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    import_files(name, [folder / f"{name}.npz"])


@pytest.mark.parametrize(
    ("name", "folder", "train", "test", "features", "classes"),
    [
        ("mnist", "mnist", 60_000, 10_000, 784, 10),
        ("fashion-mnist", "fashion_mnist", 60_000, 10_000, 784, 10),
        ("adult", "adult", 32_561, 16_281, 108, 2),
        ("rcv1-subset", "rcv1", 20_242, 3_507, 47_236, 2),
        pytest.param("cifar10-subset", "cifar10", 20_000, 5_000, 3072, 10, marks=pytest.mark.slow),
        pytest.param("cifar100-subset", "cifar100", 25_000, 5_000, 3072, 100, marks=pytest.mark.slow),
        ("pneumoniamnist", "pneumoniamnist", 4_708, 624, 784, 2),
        ("mammography", "imbalanced", 11_183, 0, 6, 2),
    ],
)
def test_a_public_set_is_read_where_it_lies(
    real: Path, name: str, folder: str, train: int, test: int, features: int, classes: int
) -> None:
    need(real / folder)
    dataset = load(name)
    assert (dataset.train.features.shape, len(np.unique(dataset.train.labels))) == ((train, features), classes)
    assert (0 if dataset.test is None else len(dataset.test)) == test
    images = features in (784, 3072)
    assert (dataset.peak == 255.0) == (dataset.train.features.dtype == np.uint8) == images
    side = 28 if features == 784 else 32
    assert dataset.image == ((features // side**2, side, side) if images else None)
    if name == "adult":
        assert dataset.test is not None
        assert ((dataset.train.labels == ">50K").sum(), (dataset.test.labels == ">50K").sum()) == (7841, 3846)
        # Six numbers, then one flag of each of eight categories.
        rows = np.asarray(dataset.train.features)
        assert set(rows[:, 6:].sum(axis=1).tolist()) == {8}
        assert rows[0, :6].tolist() == [39, 77516, 13, 2174, 0, 40]


def test_the_subset_of_rcv1_is_that_of_the_general_import(real: Path, tmp_path: Path) -> None:
    need(real / "rcv1")
    dataset = load("rcv1-subset")
    assert dataset.test is not None
    features = dataset.train.features
    assert isinstance(features, sp.csr_array)
    np.testing.assert_allclose(features.power(2).sum(axis=1), 1, atol=1e-5)
    with np.load(real / "rcv1" / "rcv1_binary_subset.npz") as stored:
        data, indices, indptr, labels = (stored[name] for name in ("data", "indices", "indptr", "y"))
    assert ((labels == 1).sum(), (labels == -1).sum()) == (11_829, 11_920)
    rows, cut = 20_242, indptr[20_242]
    imported(
        tmp_path, "rcv1",
        data=data[:cut], indices=indices[:cut], indptr=indptr[: rows + 1], shape=np.array([rows, 47_236]),
        y=labels[:rows],
        test_data=data[cut:], test_indices=indices[cut:], test_indptr=indptr[rows:] - cut,
        test_shape=np.array([len(labels) - rows, 47_236]), y_test=labels[rows:],
    )  # fmt: skip
    other = load("rcv1")
    assert other.test is not None
    for here, there in ((dataset.train, other.train), (dataset.test, other.test)):
        for csr in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(here.features, csr), getattr(there.features, csr))
        np.testing.assert_array_equal(here.labels, there.labels)


def test_a_hundred_clients_of_mnist_hold_two_classes_each(real: Path) -> None:
    need(real / "mnist")
    source = opened(name="mnist", scale="unit-interval", partition={"kind": "classes", "per_client": 2})
    shards = [source.shard(client, 100, np.float32) for client in range(100)]
    assert {len(np.unique(shard.labels)) for shard in shards} == {2}
    assert sum(shard.samples for shard in shards) == 60_000
    assert max(float(shard.features.max()) for shard in shards) == 1.0


@pytest.mark.slow
def test_colour_images_reach_a_resnet_with_their_channels(real: Path) -> None:
    need(real / "cifar100")
    pytest.importorskip("torch")
    positive = list(range(50, 100))
    keys: dict[str, Any] = {"scale": "unit-interval", "partition": {"kind": "class-groups"}}
    source = opened(positive, name="cifar100-subset", imbalance={"imratio": 0.1}, **keys)
    shard = source.shard(15, 16, np.float32)
    section = {"kind": "binary", "scorer": {"kind": "resnet20"}, "positive": positive}
    objective = build_objective(BinarySettings.model_validate(section), shard)
    assert isinstance(objective, BinaryObjective)
    assert (shard.samples, objective.positives) == (833, 83)  # three classes of 250 negative images
    scores, positives = objective.scores(objective.initial(0), np.arange(8))
    assert scores.shape == positives.shape == (8,)
    assert np.isfinite(scores).all()


@pytest.mark.slow  # make test-all
def test_news20_is_dealt_to_144_clients_value_by_value(real: Path, tmp_path: Path) -> None:
    """Of ``news20.binary``, rebuilt: presence features with rows of unit length, columns delta-coded."""
    need(real / "news20")
    with np.load(real / "news20" / "news20_binary.npz") as stored:
        indptr, columns, labels = stored["indptr"], np.cumsum(stored["dcol"]), stored["y"]
    values = np.repeat(1 / np.sqrt(np.maximum(np.diff(indptr), 1)), np.diff(indptr))
    shape = np.array([len(labels), 1_355_191])
    imported(tmp_path, "news20", data=values, indices=columns, indptr=indptr, shape=shape, y=labels)
    partition = {"kind": "ragged", "sample_groups": 12, "feature_groups": 12}
    source = opened(name="news20", test_fraction=0, partition=partition)
    assert source.problem.samples == 19_996
    sizes = []
    for client in range(144):
        shard = source.shard(client, 144)
        assert isinstance(shard.features, sp.csr_array)
        assert shard.total_features == 1_355_191
        sizes.append(shard.features.nnz)
    assert sum(sizes) == 9_097_916


def test_covtype_becomes_class_two_against_the_rest(real: Path) -> None:
    need(real / "covtype")
    import_files("covtype", [real / "covtype" / "covtype_sample.npz"])
    source = opened(name="covtype", binarise={"positive": [2]}, samples=10_000, scale="unit-interval")
    assert source.problem.samples == 10_000
    assert source.problem.class_names == ("rest", "2")
    assert source.labels.mean() == pytest.approx(0.4872, abs=1e-3)
