"""Real data of the folder that FENCHEL_DATA names: public files as they are, other forms by adapters."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fenchel.common.data.catalogue import load
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.data import DataSettings
from fenchel.common.settings.objective import BinarySettings


def adapters() -> ModuleType:
    """The module beside this one; tests are no package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("adapters", Path(__file__).with_name("adapters.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Path:
    folder = os.environ.get("FENCHEL_DATA")
    if not folder:
        pytest.skip("FENCHEL_DATA is not set, so there is no real data to read")
    return Path(folder)


def need(path: Path) -> None:
    if not path.is_dir():
        pytest.skip(f"FENCHEL_DATA holds no folder {path.name}")


@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("fashion-mnist", "fashion_mnist")])
def test_the_original_files_of_mnist_and_fashion_mnist_work_in_place(real: Path, name: str, folder: str) -> None:
    need(real / folder)
    dataset = load(name, (real,))
    assert dataset.test is not None
    assert dataset.train.features.shape == (60_000, 784)
    assert dataset.test.features.shape == (10_000, 784)
    assert dataset.train.features.dtype == np.uint8
    assert (dataset.image, dataset.peak) == ((1, 28, 28), 255.0)
    assert np.bincount(dataset.test.labels).sum() == 10_000


def test_a_hundred_clients_of_mnist_hold_two_classes_each(real: Path) -> None:
    need(real / "mnist")
    settings: dict[str, Any] = {
        "name": "mnist",
        "scale": "unit-interval",
        "partition": {"kind": "classes", "per_client": 2},
    }
    source = DataSource.open(DataSettings.model_validate(settings), 0, folders=(real,))
    shards = [source.shard(client, 100, np.float32) for client in range(100)]
    assert {len(np.unique(shard.labels)) for shard in shards} == {2}
    assert sum(shard.samples for shard in shards) == 60_000
    assert max(float(shard.features.max()) for shard in shards) == 1.0


def test_adult_has_108_features_and_the_published_classes(real: Path) -> None:
    need(real / "adult")
    dataset = load("adult", (real,))
    assert dataset.test is not None
    assert dataset.train.features.shape == (32_561, 108)
    assert dataset.test.features.shape == (16_281, 108)
    assert (dataset.train.labels == ">50K").sum() == 7841
    assert (dataset.test.labels == ">50K").sum() == 3846
    # Six numbers, then one flag of each of eight categories.
    features = np.asarray(dataset.train.features)
    assert set(features[:, 6:].sum(axis=1).tolist()) == {8}
    assert features[0, :6].tolist() == [39, 77516, 13, 2174, 0, 40]


@pytest.mark.parametrize(
    ("name", "train", "test", "features", "stored"),
    [
        ("news20", 19_996, 0, 1_355_191, 9_097_916),
        ("rcv1", 20_242, 3_507, 47_236, None),
        ("covtype", 397_050, 0, 54, None),
        ("kmnist", 10_000, 0, 784, None),
        pytest.param("cifar10", 20_000, 5_000, 3072, None, marks=pytest.mark.faults),  # long; make faults
    ],
)
def test_an_imported_subset_is_found_under_its_name(
    real: Path, tmp_path: Path, name: str, train: int, test: int, features: int, stored: int | None
) -> None:
    need(real / name)
    adapters().ADAPTERS[name](real, tmp_path, tmp_path / "cache")
    dataset = load(name, (tmp_path / "cache",))
    assert dataset.train.features.shape == (train, features)
    assert (0 if dataset.test is None else len(dataset.test)) == test
    if stored is not None:
        assert isinstance(dataset.train.features, sp.csr_array)
        assert dataset.train.features.nnz == stored


def test_the_subset_of_rcv1_is_read_where_it_lies(real: Path, tmp_path: Path) -> None:
    need(real / "rcv1")
    dataset = load("rcv1-subset", (real,))
    assert dataset.test is not None
    assert dataset.train.features.shape == (20_242, 47_236)
    assert dataset.test.features.shape == (3_507, 47_236)
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    assert ((labels == 1).sum(), (labels == -1).sum()) == (11_829, 11_920)
    features = dataset.train.features
    assert isinstance(features, sp.csr_array)
    np.testing.assert_allclose(features.power(2).sum(axis=1), 1, atol=1e-5)
    # Row by row what the general import makes of the same file.
    adapters().rcv1(real, tmp_path, tmp_path / "cache")
    imported = load("rcv1", (tmp_path / "cache",))
    assert imported.test is not None
    for here, there in ((dataset.train, imported.train), (dataset.test, imported.test)):
        for csr in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(here.features, csr), getattr(there.features, csr))
        np.testing.assert_array_equal(here.labels, there.labels)


@pytest.mark.parametrize(
    ("name", "folder", "train", "test", "classes"),
    [
        pytest.param("cifar10-subset", "cifar10", 20_000, 5_000, 10, marks=pytest.mark.faults),  # as the next
        ("cifar100-subset", "cifar100", 25_000, 5_000, 100),
        ("pneumoniamnist", "pneumoniamnist", 4_708, 624, 2),
        ("mammography", "imbalanced", 11_183, 0, 2),
    ],
)
def test_a_set_of_the_auc_experiments_is_read_where_it_lies(
    real: Path, name: str, folder: str, train: int, test: int, classes: int
) -> None:
    need(real / folder)
    dataset = load(name, (real,))
    assert (len(dataset.train), 0 if dataset.test is None else len(dataset.test)) == (train, test)
    assert len(np.unique(dataset.train.labels)) == classes
    if name != "mammography":
        channels = 3 if name.startswith("cifar") else 1
        assert (dataset.image is not None and dataset.image[0], dataset.peak) == (channels, 255.0)
        assert dataset.train.features.dtype == np.uint8


def test_colour_images_reach_a_resnet_with_their_channels(real: Path) -> None:
    need(real / "cifar100")
    pytest.importorskip("torch")
    positive = list(range(50, 100))
    settings: dict[str, Any] = {
        "name": "cifar100-subset",
        "scale": "unit-interval",
        "partition": {"kind": "class-groups"},
        "imbalance": {"imratio": 0.1},
    }
    source = DataSource.open(DataSettings.model_validate(settings), 0, positive, folders=(real,))
    shard = source.shard(15, 16, np.float32)
    section = {"kind": "binary", "scorer": {"kind": "resnet20"}, "positive": positive}
    objective = build_objective(BinarySettings.model_validate(section), shard)
    assert isinstance(objective, BinaryObjective)
    assert (shard.samples, objective.positives) == (833, 83)  # three classes of 250 negative images
    scores, positives = objective.scores(objective.initial(0), shard.take(np.arange(8)))
    assert scores.shape == positives.shape == (8,)
    assert np.isfinite(scores).all()


def test_news20_is_dealt_to_144_clients_value_by_value(real: Path, tmp_path: Path) -> None:
    need(real / "news20")
    adapters().news20(real, tmp_path, tmp_path)
    settings = {
        "name": "news20",
        "test_fraction": 0,
        "partition": {"kind": "ragged", "sample_groups": 12, "feature_groups": 12},
    }
    source = DataSource.open(DataSettings.model_validate(settings), 0, folders=(tmp_path,))
    sizes = []
    for client in range(144):
        shard = source.shard(client, 144)
        assert isinstance(shard.features, sp.csr_array)
        assert shard.total_features == 1_355_191
        sizes.append(shard.features.nnz)
    assert sum(sizes) == 9_097_916


def test_covtype_becomes_class_two_against_the_rest(real: Path, tmp_path: Path) -> None:
    need(real / "covtype")
    adapters().covtype(real, tmp_path, tmp_path)
    settings = {"name": "covtype", "binarise": {"positive": [2]}, "samples": 10_000, "scale": "unit-interval"}
    source = DataSource.open(DataSettings.model_validate(settings), 0, folders=(tmp_path,))
    assert source.problem.samples == 10_000
    assert source.problem.class_names == ("rest", "2")
    assert source.labels.mean() == pytest.approx(0.4872, abs=1e-3)
