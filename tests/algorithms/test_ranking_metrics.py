"""What a run of CODASCA says of the area under the ROC curve is true of its final model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from sklearn.metrics import average_precision_score, roc_auc_score

from fenchel.algorithms.auc.codasca import Codasca
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report import figure_names
from fenchel.report.render.terminal import show
from fenchel.report.run import Run
from fenchel.testing import load_model

FIGURES = (
    "train_auc",
    "train_auc_error",
    "test_auc",
    "test_partial_auc",
    "test_average_precision",
    "holdout_auc",
    "holdout_auc_error",
)
CLIENTS = 5


def digits(**sections: Any) -> RunSettings:
    """Is it a five or more? Some clients have hardly any such digit."""
    basis: dict[str, Any] = {
        "name": "ranking",
        "seed": 3,
        "rounds": 6,
        "clients": CLIENTS,
        "data": {
            "name": "digits",
            "scale": "unit-interval",
            "holdout": 0.3,
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        "objective": {"kind": "binary", "positive": [5, 6, 7, 8, 9], "dtype": "float64"},
        "algorithm": {"name": "codasca", "local_steps": 32, "step_size": 0.02},
        "evaluation": {"every": 3},
    }
    return validate(basis | sections)


def finished(settings: RunSettings, parent: Path) -> tuple[Run, RunFolder]:
    folder = RunFolder.create(parent, settings.name)
    asyncio.run(run_in_process(settings, folder))
    return Run(folder.path), folder


def scores(settings: RunSettings, folder: RunFolder, shards: list[Shard]) -> tuple[Any, Any]:
    """Scores of the final model for the samples of several shards together, and which are positive."""
    assert settings.objective.kind == "binary"
    objectives = [cast(BinaryObjective, build_objective(settings.objective, shard)) for shard in shards]
    found = [objective.scores(load_model(folder), objective.all_rows) for objective in objectives]
    return np.concatenate([h for h, _ in found]), np.concatenate([positive for _, positive in found])


def held(settings: RunSettings, name: str) -> list[Shard]:
    source = DataSource.open(settings.data, settings.seed)
    if name == "test":
        test = source.test()
        assert test is not None
        return [test]
    of_client = source.shard if name == "train" else source.holdout
    shards = [of_client(client, CLIENTS) for client in range(CLIENTS)]
    return [shard for shard in shards if shard is not None]


@pytest.fixture(scope="module")
def settings() -> RunSettings:
    return digits()


@pytest.fixture(scope="module")
def trained(settings: RunSettings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, RunFolder]:
    return finished(settings, tmp_path_factory.mktemp("ranking"))


def test_the_figures_of_the_test_set_are_those_of_scikit_learn(
    settings: RunSettings, trained: tuple[Run, RunFolder]
) -> None:
    run, folder = trained
    h, positive = scores(settings, folder, held(settings, "test"))
    expected = {
        "test_auc": roc_auc_score(positive, h),
        "test_partial_auc": roc_auc_score(positive, h, max_fpr=0.1),
        "test_average_precision": average_precision_score(positive, h),
    }
    assert {name: run.figures[name] for name in expected} == pytest.approx(expected, rel=0, abs=1e-12)
    assert run.figures["test_auc"] > 0.8


@pytest.mark.parametrize("name", ["train", "holdout"])
def test_the_auc_over_all_clients_is_within_its_error(
    name: str, settings: RunSettings, trained: tuple[Run, RunFolder]
) -> None:
    run, folder = trained
    shards = held(settings, name)
    true = roc_auc_score(*reversed(scores(settings, folder, shards)))
    auc, error = run.figures[f"{name}_auc"], run.figures[f"{name}_auc_error"]
    assert 0 < error < 0.3
    assert abs(auc - true) <= error
    if name == "train":  # a mean over clients is something else
        each = [roc_auc_score(*reversed(scores(settings, folder, [shard]))) for shard in shards]
        assert abs(np.mean(each) - true) > 1e-4


@pytest.mark.parametrize("factor", [0.002, 1.0, 60.0])
def test_scores_that_concentrate_or_saturate_leave_the_auc_as_well_known(
    factor: float, trained: tuple[Run, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are those of a linear model, so that a factor of the model is one of the scores."""
    model = load_model(trained[1]) * factor
    monkeypatch.setattr(Codasca, "model", property(lambda self: model))
    settings = digits(rounds=1)
    run, _ = finished(settings, tmp_path)
    true = roc_auc_score(*reversed(scores(settings, trained[1], held(settings, "train"))))  # a factor changes no order
    assert abs(run.figures["train_auc"] - true) <= run.figures["train_auc_error"] < 0.09
    assert abs(run.figures["train_auc"] - true) < 0.03


def test_a_histogram_of_all_bins_tells_the_auc_to_a_thousandth(tmp_path: Path) -> None:
    settings = digits(evaluation={"every": 6, "histograms": 1})
    run, folder = finished(settings, tmp_path)
    for name in ("train", "holdout"):
        true = roc_auc_score(*reversed(scores(settings, folder, held(settings, name))))
        assert 0 < run.figures[f"{name}_auc_error"] < 1e-3
        assert abs(run.figures[f"{name}_auc"] - true) <= run.figures[f"{name}_auc_error"]


@pytest.mark.parametrize("name", ["coda", "codasca", "npa"])
def test_the_last_row_is_that_of_the_final_model_also_in_the_middle_of_a_stage(name: str, tmp_path: Path) -> None:
    settings = digits(rounds=5, algorithm={"name": name, "step_size": 0.02}, evaluation={"every": 5})
    run, folder = finished(settings, tmp_path)
    h, positive = scores(settings, folder, held(settings, "test"))
    last = pq.read_table(folder.metrics).to_pylist()[-1]
    assert last["round"] == 5
    assert last["test_auc"] == pytest.approx(roc_auc_score(positive, h), rel=0, abs=1e-12)
    for name_, value in run.figures.items():
        assert last[name_] == value


def test_clients_with_one_class_are_legal(tmp_path: Path) -> None:
    settings = digits(
        clients=10, data={"name": "digits", "scale": "unit-interval", "partition": {"kind": "classes", "per_client": 1}}
    )
    run, folder = finished(settings, tmp_path)
    source = DataSource.open(settings.data, settings.seed)
    shards = [source.shard(client, 10) for client in range(10)]
    of_classes = [{int(label) >= 5 for label in shard.labels} for shard in shards]
    assert all(len(classes) == 1 for classes in of_classes)
    true = roc_auc_score(*reversed(scores(settings, folder, shards)))
    assert abs(run.figures["train_auc"] - true) <= run.figures["train_auc_error"] < 0.1


def test_the_figures_are_in_the_tables_and_in_the_report(trained: tuple[Run, RunFolder]) -> None:
    run, folder = trained
    table = pq.read_table(folder.metrics)
    for name in FIGURES:
        known = np.isfinite(table[name].to_numpy())
        assert np.flatnonzero(known).tolist() == [2, 5]
        assert figure_names.is_share(name)
    console = Console(width=200)
    with console.capture() as shown:
        show([run], console)
    auc, error = run.figures["train_auc"], run.figures["train_auc_error"]
    assert f"{auc:.2%} ± {error:.2%}" in shown.get()
    assert f"{auc:.2%} ± {error:.2%}" in run._repr_html_()
