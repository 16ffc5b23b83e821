"""Trackers write what the tables of the run say; their files are read back by their own libraries."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fenchel
from fenchel.common.errors import MissingDependencyError
from fenchel.common.settings.run import RunSettings
from fenchel.deploy.cli.main import application
from fenchel.server.telemetry.observer import Observer
from fenchel.trackers import TRACKERS
from tests.conftest import MakeSettings
from tests.messages import raises

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trackers.md"
ROUNDS = [1, 2]

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries have warnings of their own


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed: make trackers")


@pytest.fixture
def settings(make_settings: MakeSettings) -> RunSettings:
    return make_settings()


def tracked(settings: RunSettings, runs: Path, tracker: Observer) -> fenchel.Run:
    return fenchel.up(settings, runs=runs, in_process=True, observer=tracker)


def stopped(settings: RunSettings, runs: Path, tracker: Observer) -> None:
    """Do a run that another observer stops."""

    class Stopping(fenchel.Observer):
        def round_begun(self, t: int) -> None:
            if t == 2:
                raise fenchel.FenchelError("enough")

    with pytest.raises(fenchel.FenchelError, match="enough"):
        tracked(settings, runs, fenchel.Observers(tracker, Stopping()))


def expected(run: fenchel.Run) -> Mapping[str, list[float]]:
    """The figures that every round of the run has."""
    table = run.metrics_table
    names = ("objective", "test_accuracy", "seconds", "wire_up", "compute_s")
    return {name: table[name].to_pylist() for name in names}


# TensorBoard


def events(folder: Path) -> Any:
    module = import_module("tensorboard.backend.event_processing.event_accumulator")
    (file,) = folder.glob("events.out.tfevents.*")
    accumulator = module.EventAccumulator(str(file))
    accumulator.Reload()
    return accumulator


@needs("tensorboard")
def test_tensorboard_reads_back_every_round(settings: RunSettings, tmp_path: Path) -> None:
    run = tracked(settings, tmp_path, fenchel.trackers.TensorBoard())
    found = events(run.path / "tensorboard")
    for name, values in expected(run).items():
        scalars = found.Scalars(name)
        assert [scalar.step for scalar in scalars] == ROUNDS
        assert [scalar.value for scalar in scalars] == pytest.approx(values)
    assert found.Scalars("final/objective")[0].value == pytest.approx(run.figures["objective"])
    assert found.Scalars("final/objective")[0].step == 2


@needs("tensorboard")
def test_tensorboard_has_the_settings_as_hyperparameters(settings: RunSettings, tmp_path: Path) -> None:
    run = tracked(settings, tmp_path / "runs", fenchel.trackers.TensorBoard(tmp_path / "board"))
    found = events(tmp_path / "board" / run.path.name)
    metadata = import_module("tensorboard.plugins.hparams.metadata")
    content = found.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert hparams["rounds"].number_value == 2
    assert hparams["algorithm.name"].string_value == "fedavg"
    assert hparams["checkpoint.sync"].bool_value is settings.checkpoint.sync


@needs("tensorboard")
def test_tensorboard_is_written_without_torch_or_tensorflow(tmp_path: Path) -> None:
    script = (
        "import sys, fenchel\n"
        "tracker, runs = fenchel.trackers.TensorBoard(), sys.argv[1]\n"
        "fenchel.up('quickstart', overrides=['rounds=1'], runs=runs, in_process=True, observer=tracker)\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)


@needs("tensorboard")
def test_tensorboard_has_the_rounds_of_a_run_that_was_stopped(settings: RunSettings, tmp_path: Path) -> None:
    stopped(settings, tmp_path / "runs", fenchel.trackers.TensorBoard(tmp_path / "board"))
    (folder,) = (tmp_path / "board").iterdir()
    assert [scalar.step for scalar in events(folder).Scalars("objective")] == [1]


@pytest.mark.cluster
@needs("tensorboard")
def test_the_command_writes_event_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fenchel", "up", "quickstart", "--set", "rounds=1", "--runs", str(tmp_path)]
    subprocess.run([*command, "--track", "tensorboard"], check=True, capture_output=True, timeout=120)
    (folder,) = tmp_path.glob("*/tensorboard")
    assert [scalar.step for scalar in events(folder).Scalars("objective")] == [1]


# MLflow


@needs("mlflow")
def test_mlflow_reads_back_every_round(settings: RunSettings, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = tracked(settings, tmp_path / "runs", fenchel.trackers.MLflow("digits", uri))
    client = import_module("mlflow").MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert found.info.run_name == run.path.name
    assert found.info.status == "FINISHED"
    assert found.data.params["rounds"] == "2"
    assert found.data.params["algorithm.name"] == "fedavg"
    for name, values in expected(run).items():
        history = sorted(client.get_metric_history(found.info.run_id, name), key=lambda metric: metric.step)
        assert [metric.step for metric in history] == ROUNDS
        assert [metric.value for metric in history] == pytest.approx(values)
    assert found.data.metrics["final.objective"] == pytest.approx(run.figures["objective"])
    assert "sqlite" in (run.path / "disclosures.json").read_text()


@needs("mlflow")
def test_mlflow_knows_that_a_run_was_stopped_and_an_experiment_has_several_runs(
    settings: RunSettings, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    stopped(settings, tmp_path / "runs", fenchel.trackers.MLflow("digits", uri))
    tracked(settings, tmp_path / "runs", fenchel.trackers.MLflow("digits", uri))
    client = import_module("mlflow").MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert sorted(run.info.status for run in found) == ["FAILED", "FINISHED"]


# Weights & Biases


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a run: a log in the format of LevelDB after a header of 7 bytes."""
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    content, position, whole, block = path.read_bytes(), 7, b"", 32768
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        whole += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record.FromString(whole)
            whole = b""


def values(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


@needs("wandb")
def test_wandb_keeps_every_round_in_the_run_folder(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    run = tracked(settings, tmp_path, fenchel.trackers.WandB("digits"))
    import_module("wandb").teardown()
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    found = list(records(next(folder.glob("run-*.wandb"))))
    rows = [values(record.history.item) for record in found if record.HasField("history")]
    assert [row["_step"] for row in rows] == ROUNDS
    for name, figures in expected(run).items():
        assert [row[name] for row in rows] == pytest.approx(figures)
    (config,) = [values(record.run.config.update) for record in found if record.HasField("run")]
    assert config["rounds"] == 2
    assert config["algorithm"]["name"] == "fedavg"
    final: dict[str, Any] = {}
    for record in found:
        final |= values(record.summary.update)
    assert final["final.objective"] == pytest.approx(run.figures["objective"])
    assert [record.exit.exit_code for record in found if record.HasField("exit")] == [0]


# All


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_missing_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with raises(MissingDependencyError) as caught:
        TRACKERS[name]()
    assert caught.value.key == name
    assert f"fenchel[{name}]" in str(caught.value)


def test_no_library_is_imported_before_a_tracker_is_made() -> None:
    script = (
        "import sys, fenchel\n"
        "fenchel.trackers.TensorBoard\n"
        "assert not {'tensorboard', 'mlflow', 'wandb'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_tracker_that_does_not_exist_is_refused_with_the_names_of_those_that_do() -> None:
    done = CliRunner().invoke(application(), ["up", "quickstart", "--track", "tensorbord"])
    assert done.exit_code != 0
    assert "--track" in str(done.exception)


@pytest.mark.slow
def test_the_observers_of_the_page_work_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for example, expected in zip(examples, (r"best accuracy: 0\.[89]\d\d\n", r"\d+ accurate enough\n"), strict=True):
        exec(compile(example, str(PAGE), "exec"), {})
        assert re.fullmatch(expected, capsys.readouterr().out)


def test_the_page_lists_every_method_and_every_tracker() -> None:
    page = PAGE.read_text()
    methods = {name for name in vars(Observer) if not name.startswith("_")}
    assert set(re.findall(r"^\* `(\w+)\(", page, re.MULTILINE)) == methods
    assert set(re.findall(r"^\* `(\w+)`, `", page, re.MULTILINE)) == set(TRACKERS)
