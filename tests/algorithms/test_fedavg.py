"""FedAvg is gradient descent on the pooled data where it must be, and the same bits whenever it runs."""

from __future__ import annotations

import asyncio
import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import TooFewRepliesError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report.run import Run
from fenchel.server.telemetry.summary import Summary
from fenchel.testing import load_model
from tests.conftest import MakeSettings
from tests.messages import raises

UNEQUAL = {"name": "digits", "samples": 200, "scale": "unit-interval", "partition": {"kind": "dirichlet", "alpha": 0.3}}
CLIENTS = 3


def run(settings: RunSettings, parent: Path) -> tuple[Summary, RunFolder]:
    folder = RunFolder.create(parent, settings.name)
    return asyncio.run(run_in_process(settings, folder)), folder


def final_model(settings: RunSettings, parent: Path) -> Vector:
    return load_model(run(settings, parent)[1])


def pooled(settings: RunSettings) -> Shard:
    return DataSource.open(settings.data, settings.seed).training(settings.objective.dtype)


def descended(settings: RunSettings, steps: int, step_size: float) -> Vector:
    """Gradient descent on the pooled data, without any client."""
    objective = build_objective(settings.objective, pooled(settings))
    w = objective.initial(settings.seed)
    for _ in range(steps):
        w = w - step_size * objective.gradient(w)
    return w


@pytest.mark.parametrize("data", [UNEQUAL, {"name": "breast_cancer", "scale": "standard", "bias": 1.0}])
def test_one_full_local_step_of_all_clients_is_a_step_of_gradient_descent_on_the_pooled_data(
    data: dict[str, Any], make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(rounds=7, data=data)
    expected = descended(settings, 7, step_size=0.5)
    np.testing.assert_allclose(final_model(settings, tmp_path), expected, rtol=0, atol=1e-12)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize(("local_steps", "rounds", "gap"), [(1, 120, 1e-7), (5, 40, 2e-3)])
def test_independent_shards_reach_the_optimum_of_scikit_learn(
    local_steps: int, rounds: int, gap: float, make_settings: MakeSettings, tmp_path: Path
) -> None:
    l2 = 0.2
    settings = make_settings(
        rounds=rounds,
        data={"name": "digits", "samples": 600, "scale": "unit-interval"},
        objective={"kind": "softmax", "l2": l2},
        algorithm={"name": "fedavg", "local_steps": local_steps, "batch_size": None, "step_size": 0.5},
        evaluation={"every": rounds},
    )
    shard = pooled(settings)
    assert not isinstance(shard.features, sp.csr_array)
    solver = LogisticRegression(C=1 / (l2 * shard.samples), fit_intercept=False, tol=1e-10, max_iter=10_000)
    solver.fit(shard.features, shard.labels)
    objective = build_objective(settings.objective, shard)
    optimum = objective.value(solver.coef_.ravel())
    summary, folder = run(settings, tmp_path)
    assert optimum - 1e-9 < summary.figures["objective"] < optimum + gap
    assert summary.figures["objective"] == pytest.approx(objective.value(load_model(folder)), abs=1e-12)


@pytest.mark.parametrize(
    ("sampler", "asked"),
    [
        ({"kind": "all"}, {4}),
        ({"kind": "fixed", "size": 3}, {3}),
        ({"kind": "fraction", "fraction": 0.5}, {2}),
        ({"kind": "bernoulli", "probability": 0.5}, {1, 2, 3, 4}),
        ({"kind": "cyclic", "groups": 3}, {1, 2}),
        ({"kind": "weighted", "size": 2}, {2}),
        ({"kind": "weighted", "size": 6, "replacement": True}, {1, 2, 3, 4}),
    ],
)
def test_every_sampler_asks_as_many_clients_as_it_says(
    sampler: dict[str, Any], asked: set[int], make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(rounds=6, clients=4, participation={"sampler": sampler})
    summary, folder = run(settings, tmp_path)
    metrics = pq.read_table(folder.metrics)
    assert summary.completed
    assert set(metrics["asked"].to_pylist()) <= asked
    assert metrics["asked"].to_pylist() == metrics["counted"].to_pylist()


@pytest.mark.parametrize(
    "sections",
    [
        {"data": UNEQUAL | {"holdout": 0.2}},
        {"data": {"name": "breast_cancer", "scale": "standard"}, "objective": {"kind": "logistic", "l2": 0.1}},
        {"data": {"file": "houses.csv", "task": "regression"}, "objective": {"kind": "squared", "l2": 0.1}},
    ],
    ids=["softmax", "logistic", "regression"],
)
def test_the_figures_are_those_of_the_pooled_data(
    sections: dict[str, Any], make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    houses = np.random.default_rng(0).standard_normal((50, 4))
    np.savetxt("houses.csv", houses, delimiter=",", header="rooms,age,distance,label", comments="")
    algorithm = {"name": "fedavg", "local_epochs": 1, "batch_size": 16, "step_size": 0.02}
    settings = make_settings(algorithm=algorithm, **sections)
    source = DataSource.open(settings.data, settings.seed)
    summary, folder = run(settings, tmp_path)
    model = load_model(folder)
    shards = [source.shard(index, CLIENTS, "float64") for index in range(CLIENTS)]
    held = [shard for index in range(CLIENTS) if (shard := source.holdout(index, CLIENTS, "float64"))]
    assert bool(held) == bool(settings.data.holdout)

    def metrics(parts: list[Shard]) -> Metrics:
        return reduce(Metrics.__add__, (build_objective(settings.objective, part).evaluate(model) for part in parts))

    test = source.test("float64")
    expected = {"train": metrics(shards)}
    expected |= {"holdout": metrics(held)} if held else {}
    expected |= {"test": metrics([test])} if test is not None else {}
    figures = {}
    for name, each in expected.items():
        figures[f"{name}_loss"] = each.loss
        if each.accuracy is not None:
            figures[f"{name}_accuracy"] = each.accuracy
    penalty = build_objective(settings.objective, shards[0]).penalty(model)
    figures["objective"] = expected["train"].loss + penalty
    losses = [metrics([shard]).loss for shard in shards]
    figures["uniform_objective"] = float(np.mean(losses)) + penalty
    figures["worst_client_loss"] = max(losses)
    accuracies = [each for each in (metrics([shard]).accuracy for shard in held) if each is not None]
    if accuracies:
        figures["client_accuracy_mean"] = float(np.mean(accuracies))
        figures["client_accuracy_std"] = float(np.std(accuracies))
        # Of few clients the worst tenth is one.
        figures["client_accuracy_worst"] = figures["client_accuracy_worst_tenth"] = min(accuracies)
    ranking = {"auc", "error", "precision"}  # tests/algorithms/test_ranking_metrics.py
    found = {name: value for name, value in summary.figures.items() if name.rpartition("_")[2] not in ranking}
    assert found == pytest.approx(figures, abs=1e-12)


@pytest.mark.parametrize("sparsified", [False, True], ids=["found by the server", "found by the clients"])
def test_a_run_that_diverges_says_so(make_settings: MakeSettings, tmp_path: Path, sparsified: bool) -> None:
    algorithm = {"name": "fedavg", "local_steps": 3, "step_size": 1e200}
    sparse = {"uplink": {"sparsify": {"support": "top-k", "keep": 0.5}}} if sparsified else {}
    with np.errstate(all="ignore"), raises(TooFewRepliesError, round=1, phase="train") as stopped:
        run(
            make_settings(algorithm=algorithm, objective={"kind": "squared", "l2": 0.1}, data=SQUARE, **sparse),
            tmp_path,
        )
    assert stopped.value.diverged
    assert set(stopped.value.failures) == {"client-000", "client-001", "client-002"}


def test_infinite_figures_are_not_in_the_summary_which_is_json(make_settings: MakeSettings, tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "local_steps": 1, "step_size": 1e160}
    with np.errstate(all="ignore"):
        settings = make_settings(
            rounds=1,
            algorithm=algorithm,
            objective={"kind": "squared"},
            data=SQUARE | {"test_fraction": 0.3},
            evaluation={"clients": False},
        )
        summary, folder = run(settings, tmp_path)
    figures = json.loads(folder.summary.read_text(), parse_constant=pytest.fail)["figures"]
    assert "test_accuracy" in figures
    assert "test_loss" not in figures
    assert summary.figures["test_loss"] == Run(folder.path).figures["test_loss"] == np.inf


SQUARE = {"name": "breast_cancer", "scale": "standard"}
