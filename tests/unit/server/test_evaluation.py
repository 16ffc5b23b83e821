"""Who computes which figure, and who is never asked."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from common.data.source import DataSource
from common.errors import SettingsError
from common.objectives.factory import build_objective
from common.phases import EVALUATE
from common.run_folder import RunFolder
from common.settings.run import RunSettings
from deploy.inprocess import run_in_process
from tests.algorithms.federation import load_model
from tests.conftest import MakeSettings

SPLIT = {
    "clients": 4,
    "rounds": 3,
    "data": {
        "name": "breast_cancer",
        "scale": "unit-interval",
        "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
    },
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "hybrid-fedavg"},
}
TRAINING = ("objective", "train_loss", "train_accuracy")


def run(settings: RunSettings, parent: Path) -> tuple[dict[str, float], int, RunFolder]:
    """Return the last figures, how many evaluations the clients were asked, and the folder."""
    folder = RunFolder.create(parent, settings.name)
    summary = asyncio.run(run_in_process(settings, folder))
    asked = pq.read_table(folder.calls)["phase"].to_pylist().count(EVALUATE)
    return summary.figures, asked, folder


def pooled(settings: RunSettings, folder: RunFolder) -> dict[str, float]:
    """The figures of the final model, from the data set itself."""
    source = DataSource.open(settings.data, settings.seed)
    model = load_model(folder)
    train = build_objective(settings.objective, source.training())
    test = source.test()
    assert test is not None
    found: dict[str, float] = {}
    for name, metrics in (("train", train.evaluate(model)), ("test", train.evaluate(model, test))):
        assert metrics.accuracy is not None
        found |= {f"{name}_loss": metrics.loss, f"{name}_accuracy": metrics.accuracy}
    return found | {"objective": train.value(model)}


def test_where_features_are_split_the_server_computes_the_training_objective_itself(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(**SPLIT)
    figures, asked, folder = run(settings, tmp_path)
    assert asked == 0
    assert figures == pytest.approx(pooled(settings, folder), abs=1e-12)
    assert pq.read_table(folder.metrics)["objective"].null_count == 0
    assert not any(math.isnan(value) for value in pq.read_table(folder.metrics)["objective"].to_pylist())


def test_where_features_are_split_nobody_else_is_asked_for_it(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(**SPLIT, evaluation={"training": False})
    figures, asked, folder = run(settings, tmp_path)
    assert asked == 0
    expected = {name: value for name, value in pooled(settings, folder).items() if name not in TRAINING}
    assert figures == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("evaluation", "asks"),
    [({}, True), ({"training": True}, False), ({"training": False}, True), ({"clients": False}, None)],
)
def test_where_clients_hold_whole_samples_they_are_asked_unless_the_server_does_it(
    evaluation: dict[str, Any], asks: bool | None, make_settings: MakeSettings, tmp_path: Path
) -> None:
    partition = {"kind": "grid", "sample_groups": 4, "feature_groups": 1}
    sections = SPLIT | {"data": SPLIT["data"] | {"partition": partition}, "evaluation": evaluation}  # type: ignore[operator]
    settings = make_settings(**sections)
    figures, asked, folder = run(settings, tmp_path)
    assert asked == (12 if asks else 0)
    expected = pooled(settings, folder)
    if asks is None:
        expected = {name: value for name, value in expected.items() if name not in TRAINING}
    assert figures == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("data", "reason"),
    [({"name": "own"}, "only the clients have"), ({"name": "digits", "holdout": 0.1}, "not all samples")],
)
def test_the_server_cannot_evaluate_on_training_data_that_it_lacks(
    data: dict[str, Any], reason: str, make_settings: MakeSettings
) -> None:
    with pytest.raises(SettingsError, match=rf"evaluation\.training: true given, .*{reason}"):
        make_settings(data=data, evaluation={"training": True})
    make_settings(data=data)
