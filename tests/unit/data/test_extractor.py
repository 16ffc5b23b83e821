"""A frozen network makes features of images, once; nothing in its file is run, and a machine without it says so."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.local_data import OwnFile
from fenchel.common.data.npz import write_npz
from fenchel.common.data.samples import DataSet, Samples
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import ChecksumError, DataError, MissingDependencyError
from fenchel.common.settings.data import DataSettings, ExtractorSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server.evaluation import Evaluator
from tests.conftest import MakeSettings
from tests.messages import logged, raises

torch = pytest.importorskip("torch")

from fenchel.common.data import extractor as extracting  # noqa: E402
from fenchel.common.data.extractor import Extracted, Extractor  # noqa: E402
from fenchel.common.data.resnet import features, read_weights  # noqa: E402

nn = torch.nn


class Block(nn.Module):  # type: ignore[name-defined, misc]
    """The paper's building block, figure 2, written as everybody writes it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        past = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + past)


class ResNet18(nn.Module):  # type: ignore[name-defined, misc]
    """Modules with the names of the published weights; an oracle for the function under test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        sizes = [64, 64, 128, 256, 512]
        for stage in range(1, 5):
            stride = 1 if stage == 1 else 2
            first = Block(sizes[stage - 1], sizes[stage], stride)
            setattr(self, f"layer{stage}", nn.Sequential(first, Block(sizes[stage], sizes[stage], 1)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


@pytest.fixture(scope="module")
def network() -> Any:
    """A ResNet-18 with random weights, its batch normalisation among them."""
    torch.manual_seed(0)
    network = ResNet18()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.2, 0.2)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)  # or images would hardly differ in the end
    return network.eval()


@pytest.fixture(scope="module")
def weights(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep features in a folder of the test; return it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(extracting.VARIABLE, raising=False)
    return extracting.feature_folder()


def settings(weights: Path, **keys: Any) -> DataSettings:
    """Digits at the smallest size, to be quick."""
    basis: dict[str, Any] = {"name": "digits", "samples": 40, "extractor": {"file": str(weights), "size": 32}}
    return DataSettings.model_validate(basis | keys)


def source(weights: Path, seed: int = 0, **keys: Any) -> DataSource:
    return DataSource.open(settings(weights, **keys), seed)


def test_features_are_those_of_the_network_in_evaluation_mode(network: Any, weights: Path) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images = torch.rand(5, 3, 64, 64)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        expected = network((images - mean[:, None, None]) / deviation[:, None, None])
    found = features(read_weights(weights), images, 64)
    assert found.shape == (5, 512)
    assert float(expected.std()) > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_image_of_one_colour_stays_so_when_it_is_resized(weights: Path) -> None:
    grey = torch.full((1, 3, 8, 8), 0.3)
    read = read_weights(weights)
    torch.testing.assert_close(features(read, grey, 40), features(read, torch.full((1, 3, 40, 40), 0.3), 40))


def test_pixels_give_way_to_features_of_the_same_samples(weights: Path) -> None:
    data = source(weights, bias=1.0, scale="unit-rows")
    plain = source(weights, extractor=None)
    assert (data.problem.features, data.problem.image) == (513, None)
    shard, pixels = data.shard(1, 3), plain.shard(1, 3)
    np.testing.assert_array_equal(shard.samples_held, pixels.samples_held)
    np.testing.assert_array_equal(shard.labels, pixels.labels)
    images = torch.from_numpy(np.asarray(pixels.features, np.float32) / 16).reshape(-1, 1, 8, 8)
    made = features(read_weights(weights), images.repeat(1, 3, 1, 1), 32).double().numpy()
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    np.testing.assert_allclose(array(shard), np.column_stack([made, np.ones(len(made))]), atol=1e-5)
    test = data.test()
    assert test is not None
    assert test.features.shape == (360, 513)
    assert data.training().samples == 40


def test_nothing_is_computed_twice_on_one_machine(weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = Extractor.compute

    def counting(self: Extractor, images: Any, threads: int = 1) -> Any:
        computed.append(len(images))
        return compute(self, images, threads)

    monkeypatch.setattr(Extractor, "compute", counting)
    first = source(weights)
    one = first.shard(0, 2)
    assert sum(computed) == 20  # its own images alone
    again = source(weights, partition={"kind": "zipf", "exponent": 1.0}).training()
    assert sum(computed) == 40  # another partition, a fresh process: only what was not there
    np.testing.assert_array_equal(again.features[one.samples_held], one.features)
    source(weights).extract()
    source(weights).extract()
    assert sum(computed) == 40 + 360
    assert len(list(cache.iterdir())) == 4
    source(weights, extractor={"file": str(weights), "size": 33}).shard(0, 2)
    assert sum(computed) == 420  # other features


def test_many_images_go_through_in_batches(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = array(source(weights).training())
    monkeypatch.setenv("XDG_CACHE_HOME", str(weights.parent / "other"))
    monkeypatch.setattr(extracting, "BATCH", 7)
    np.testing.assert_allclose(array(source(weights).training()), whole, atol=1e-5)


def test_other_weights_make_other_features(weights: Path, tmp_path: Path) -> None:
    state = torch.load(weights, weights_only=True)
    state["layer4.1.bn2.bias"] = state["layer4.1.bn2.bias"] + 1
    torch.save(state, tmp_path / "other.pth")
    mine, other = (array(source(path).shard(0, 2)) for path in (weights, tmp_path / "other.pth"))
    assert not np.allclose(mine, other)


def test_a_machine_may_have_the_file_elsewhere(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = source(weights).shard(0, 4).features
    monkeypatch.setenv(extracting.VARIABLE, str(weights))
    np.testing.assert_array_equal(source(Path("nowhere.pth")).shard(0, 4).features, expected)


def test_a_file_that_is_not_the_runs_is_refused(weights: Path) -> None:
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    source(weights, extractor={"file": str(weights), "size": 32, "sha256": found}).shard(0, 4)
    with raises(ChecksumError, source=weights, found=found, expected="0" * 64):
        source(weights, extractor={"file": str(weights), "size": 32, "sha256": "0" * 64}).shard(0, 4)


def test_a_missing_file_is_named_and_a_server_without_it_leaves_testing_to_the_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make_settings: MakeSettings
) -> None:
    data = source(tmp_path / "absent.pth")
    with raises(DataError, source=tmp_path / "absent.pth", key="data.extractor.file"):
        data.shard(0, 2)
    with caplog.at_level(logging.WARNING, "fenchel"):
        assert data.test() is None
    assert logged(caplog, logging.WARNING, data.lack)
    run = make_settings(data=data.settings.model_dump(mode="json"), evaluation={"training": True})
    with raises(DataError, key="evaluation.training"):
        Evaluator.build(run, _Nobody(), source_test(data), data)  # type: ignore[arg-type]


class _Nobody:
    """A fleet without clients."""

    members: dict[str, Any] = {}  # noqa: RUF012


def array(shard: Shard) -> Any:
    return shard.features


def source_test(data: DataSource) -> Any:
    plain = DataSource.open(data.settings.model_copy(update={"extractor": None}), 0)
    return plain.test()


def test_without_torch_it_is_said_what_to_install(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = source(weights)
    monkeypatch.setitem(sys.modules, "torch", None)
    with raises(MissingDependencyError, key="data.extractor"):
        data.shard(0, 2)


class Trap:
    """What a harmful file would hold: code that runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path("sprung").write_text, ("",))


def test_nothing_in_a_file_of_weights_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Trap()}, tmp_path / "trap.pth")
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps(Trap(), protocol=2))
    for name in ("trap.pth", "pickle.pth"):
        with raises(DataError, source=tmp_path / name):
            source(tmp_path / name).shard(0, 2)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("state", "array"),
    [
        ([1, 2], {"conv1.weight"}),
        ({"conv1.weight": np.float64(1)}, {"", "conv1.weight"}),  # some releases of torch read it
        ({"conv1.weight": torch.zeros(64, 1, 7, 7)}, {"conv1.weight"}),
        ({}, {"conv1.weight"}),
    ],
    ids=["list", "number", "shape", "empty"],
)
def test_a_file_of_another_network_is_refused(tmp_path: Path, state: Any, array: set[str]) -> None:
    torch.save(state, tmp_path / "x.pth")
    with raises(DataError, source=tmp_path / "x.pth") as caught:
        read_weights(tmp_path / "x.pth")
    assert caught.value.array in array


def test_what_are_no_images_is_refused(weights: Path, tmp_path: Path) -> None:
    with raises(DataError, source="breast_cancer", key="data.extractor"):
        source(weights, name="breast_cancer")
    with raises(DataError, source="x.npz", key="data.extractor"):
        Extractor.of(ExtractorSettings(file=weights), (4, 8, 8), 255.0, "x.npz")


def test_a_clients_own_images_become_features(weights: Path, tmp_path: Path, make_settings: MakeSettings) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 100), dtype=np.uint8)
    write_npz(tmp_path / "x.npz", DataSet(Samples(pixels, np.arange(12) % 2), image=(1, 10, 10)))
    data = {"name": "own", "holdout": 0.25, "extractor": {"file": str(weights), "size": 32}}
    held = OwnFile(tmp_path / "x.npz").of(make_settings(data=data), 0, 3)
    assert held.holdout is not None
    assert (held.shard.features.shape, held.holdout.features.shape) == ((9, 512), (3, 512))
    extractor = Extractor(ExtractorSettings(file=weights, size=32), (1, 10, 10), 255.0)
    expected: Any = Extracted(extractor, pixels).take(np.arange(12))
    np.testing.assert_allclose(array(held.shard), expected[held.shard.samples_held], rtol=1e-6)


def test_a_run_trains_a_linear_model_on_the_features(
    weights: Path, tmp_path: Path, make_settings: MakeSettings
) -> None:
    keys = {"client_tests": "own-distribution", "bias": 1.0, "scale": "unit-rows", "samples": 120}
    data = settings(weights, **keys).model_dump(mode="json")
    algorithm = {"name": "fedavg", "local_steps": 400, "step_size": 1.0}
    run = make_settings(data=data, rounds=6, algorithm=algorithm)
    summary = asyncio.run(run_in_process(run, RunFolder.create(tmp_path, "features")))
    assert summary.figures["train_accuracy"] > 0.6
    assert summary.figures["test_accuracy"] > 0.5
    assert 0 <= summary.figures["client_accuracy_worst"] <= summary.figures["client_accuracy_mean"] <= 1
