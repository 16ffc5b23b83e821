"""Who computes which figure, and who is never asked."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from fenchel.client.session import Session
from fenchel.common.data.source import DataSource
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.score_groups import Groups
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import CHUNK_BYTES
from fenchel.common.wire.phases import EVALUATE
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server.evaluation import over_clients
from fenchel.testing import load_model
from tests.conftest import MakeSettings
from tests.messages import raises

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
TRAINING = ("objective", "train_loss", "train_accuracy", "train_auc", "train_auc_error")


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
    shard = source.training()
    found["train_auc"] = float(roc_auc_score(shard.labels, shard.features @ model))
    labels, scores = test.labels, test.features @ model
    return found | {
        "objective": train.value(model),
        "train_auc_error": 0.0,
        "test_auc": float(roc_auc_score(labels, scores)),
        "test_partial_auc": float(roc_auc_score(labels, scores, max_fpr=0.1)),
        "test_average_precision": float(average_precision_score(labels, scores)),
    }


def each_client(settings: RunSettings, folder: RunFolder, *, holdout: bool = False) -> list[Metrics]:
    """What the final model does on each client's shard or holdout, from the data set itself."""
    source, model = DataSource.open(settings.data, settings.seed), load_model(folder)
    assert isinstance(settings.clients, int)
    whole = build_objective(settings.objective, source.training())
    held = source.holdout if holdout else source.shard
    shards = [held(client, settings.clients) for client in range(settings.clients)]
    return [whole.evaluate(model, shard) for shard in shards if shard is not None]


@pytest.mark.parametrize(
    "tests", [{"holdout": 0.2}, {"client_tests": "own-distribution"}, {}], ids=["holdout", "tests", "none"]
)
def test_every_client_counts_the_same_however_large_it_is(
    tests: dict[str, Any], make_settings: MakeSettings, tmp_path: Path
) -> None:
    partition = {"kind": "zipf", "exponent": 1.0, "alpha": 0.3}
    settings = make_settings(
        clients=12, data={"name": "digits", "scale": "unit-interval", "partition": partition} | tests
    )
    figures, _, folder = run(settings, tmp_path)
    losses = [metrics.loss for metrics in each_client(settings, folder)]
    assert figures["worst_client_loss"] == pytest.approx(max(losses), abs=1e-12)
    accuracies = sorted(float(each.accuracy or 0) for each in each_client(settings, folder, holdout=True))
    named = {name: value for name, value in figures.items() if name.startswith("client_")}
    if not tests:
        assert named == {}
        return
    assert len(set(accuracies)) > 3
    expected = {
        "client_accuracy_mean": statistics.fmean(accuracies),
        "client_accuracy_worst": accuracies[0],
        "client_accuracy_std": statistics.pstdev(accuracies),
        "client_accuracy_worst_tenth": (accuracies[0] + accuracies[1]) / 2,  # of twelve clients two
    }
    assert named == pytest.approx(expected, abs=1e-12)
    assert figures["holdout_accuracy"] != pytest.approx(expected["client_accuracy_mean"], abs=1e-3)


def test_the_worst_tenth_is_rounded_up_and_clients_without_test_samples_are_left_out() -> None:
    def told(correct: int | None, samples: int) -> Metrics:
        return Metrics(2.0 * samples, correct, samples)

    ten = over_clients([told(1, 2)], [told(count, 10) for count in range(10)] + [told(0, 0)])
    assert ten["client_accuracy_worst_tenth"] == ten["client_accuracy_worst"] == 0
    assert ten["client_accuracy_mean"] == pytest.approx(0.45)
    eleven = over_clients([], [told(count, 10) for count in range(11)])
    assert eleven["client_accuracy_worst_tenth"] == pytest.approx(0.05)
    assert math.isnan(eleven["worst_client_loss"])
    regression = over_clients([told(None, 3)], [told(None, 3)])
    assert regression == {"worst_client_loss": 2.0}


@pytest.mark.parametrize("training", [None, False])
def test_where_features_are_split_the_server_computes_the_training_objective_itself_unless_it_must_not(
    training: bool | None, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(**SPLIT, evaluation={"training": training})
    figures, asked, folder = run(settings, tmp_path)
    assert asked == 0
    expected = pooled(settings, folder)
    if training is None:
        objectives = pq.read_table(folder.metrics)["objective"].to_pylist()
        assert all(value is not None and not math.isnan(value) for value in objectives)
    else:
        expected = {name: value for name, value in expected.items() if name not in TRAINING}
    assert figures == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("evaluation", "asks"),
    [({}, True), ({"training": True}, False), ({"training": False}, True), ({"clients": False}, None)],
)
def test_where_clients_hold_whole_samples_they_are_asked_unless_the_server_does_it(
    evaluation: dict[str, Any], asks: bool | None, make_settings: MakeSettings, tmp_path: Path
) -> None:
    partition = {"kind": "grid", "sample_groups": 4, "feature_groups": 1}
    asked_for = {"histograms": 5} | evaluation
    sections = SPLIT | {"data": SPLIT["data"] | {"partition": partition}, "evaluation": asked_for}  # type: ignore[operator]
    settings = make_settings(**sections)
    figures, asked, folder = run(settings, tmp_path)
    assert (asked >= 12 and asked % 4 == 0) if asks else asked == 0  # again, where scores concentrate
    expected = pooled(settings, folder)
    if asks is None:
        expected = {name: value for name, value in expected.items() if name not in TRAINING}
    if asks:
        auc, error = figures.pop("train_auc"), figures.pop("train_auc_error")
        assert 0 < error < 0.1
        assert abs(auc - expected.pop("train_auc")) <= error
        del expected["train_auc_error"]
        losses = [metrics.loss for metrics in each_client(settings, folder)]
        expected["worst_client_loss"] = max(losses)
        terms = expected["objective"] - expected["train_loss"]
        expected["uniform_objective"] = statistics.fmean(losses) + terms
    assert figures == pytest.approx(expected, abs=1e-12)


TWO_CLASSES = {
    "rounds": 1,
    "clients": 3,
    "data": {"name": "breast_cancer", "scale": "standard", "holdout": 0.3},
    "objective": {"kind": "logistic", "l2": 0.1},
}


def test_scores_are_grouped_as_the_settings_say(make_settings: MakeSettings, tmp_path: Path) -> None:
    errors = []
    for number, least in enumerate((1, 9, 30)):
        settings = make_settings(**TWO_CLASSES, evaluation={"histograms": least})
        figures, _, folder = run(settings, tmp_path / str(number))
        errors.append([figures["train_auc_error"], figures["holdout_auc_error"]])
        model, source = load_model(folder), DataSource.open(settings.data, settings.seed)
        for name, held in (("train", source.shard), ("holdout", source.holdout)):
            shards = [shard for client in range(3) if (shard := held(client, 3)) is not None]
            labels = np.concatenate([shard.labels for shard in shards])
            true = roc_auc_score(labels, np.concatenate([shard.features @ model for shard in shards]))
            assert abs(figures[f"{name}_auc"] - true) <= figures[f"{name}_auc_error"] + 1e-12
    assert errors == sorted(errors)
    assert max(errors[0]) < 0.01


@pytest.mark.parametrize("evaluation", [{"histograms": None}, {}])
def test_without_histograms_clients_tell_nothing_of_their_scores(
    evaluation: dict[str, Any], make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(**TWO_CLASSES, evaluation=evaluation)
    figures, asked, _ = run(settings, tmp_path)
    assert asked == 3
    assert "train_loss" in figures
    assert not {"train_auc", "train_auc_error", "holdout_auc", "holdout_auc_error"} & figures.keys()
    assert "test_auc" in figures


def test_scores_that_are_not_finite_have_no_auc_and_the_other_figures_remain(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As tests of the session show, this is what a client tells whose training samples have no finite scores.
    falsify(monkeypatch, lambda _: {name: np.empty((0, 3), np.int64) for name in ("positives", "negatives")})
    settings = make_settings(**TWO_CLASSES, evaluation={"histograms": 5})
    figures, _, folder = run(settings, tmp_path)
    assert set(pq.read_table(folder.calls)["outcome"].to_pylist()) == {"counted"}
    assert not {"train_auc", "train_auc_error"} & figures.keys()
    assert {"train_loss", "holdout_auc", "holdout_auc_error"} <= figures.keys()


def moved(groups: Groups, column: int, by: int) -> Groups:
    """Groups the largest of which was falsified."""
    changed = groups.copy()
    changed[groups[:, 2].argmax(), column] += by
    return changed


LIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a sample more": ("positives", lambda groups: moved(groups, 2, 1), "samples, expected 106"),
    "a sample less": ("holdout_negatives", lambda groups: moved(groups, 2, -1), "samples, expected 46"),
    "a range too far": ("negatives", lambda groups: moved(groups, 1, 5000), "not disjoint, increasing ranges"),
    "no groups": ("negatives", lambda groups: groups[:0], "the number that the client reported"),
    "a smaller group": ("positives", lambda groups: moved(groups, 2, 4 - groups[:, 2].max()), "has 4 samples"),
    "fractions": ("positives", lambda groups: groups.astype(float), "has dtype float64"),
    "another shape": ("holdout_positives", lambda groups: groups[:, :2], "has shape"),
    "more groups than bins": ("positives", lambda groups: np.concatenate([groups] * 1024), "at most 1024"),
    "too many bytes": ("negatives", lambda groups: np.concatenate([groups] * (CHUNK_BYTES // 24)), "above the maximum"),
    "more correct samples than samples": ("correct", lambda correct: 10_000, "is 10000, expected at most"),
    "fewer samples held out": ("holdout_samples", lambda samples: samples - 1, "hold 46 samples, expected 45"),
}


def falsify(monkeypatch: pytest.MonkeyPatch, lie: Callable[[dict[str, Any]], Values]) -> None:
    """Let the second client tell something else of its evaluation."""
    honest = Session._inspect

    def inspect(self: Session, phase: str, values: Values) -> Values:
        reply = dict(honest(self, phase, values))
        return {**reply, **lie(reply)} if self.client == "client-001" else reply

    monkeypatch.setattr(Session, "_inspect", inspect)


def test_a_client_with_more_correct_samples_than_samples_is_refused_without_histograms_too(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    falsify(monkeypatch, lambda reply: {"holdout_correct": 10_000})
    with caplog.at_level("WARNING", logger="fenchel.server"):
        run(make_settings(data={"name": "digits", "holdout": 0.2}), tmp_path)
    assert "'holdout_correct' is 10000, expected at most" in caplog.text


@pytest.mark.parametrize(("name", "falsified", "reason"), LIES.values(), ids=LIES.keys())
def test_a_client_whose_groups_cannot_be_true_is_refused_and_the_others_count(
    name: str,
    falsified: Callable[[Any], Any],
    reason: str,
    make_settings: MakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    falsify(monkeypatch, lambda reply: {name: falsified(reply[name])})
    with caplog.at_level("WARNING", logger="fenchel.server"):
        _, _, folder = run(make_settings(**TWO_CLASSES, evaluation={"histograms": 5}), tmp_path)
    calls = pq.read_table(folder.calls).to_pylist()
    outcomes = {call["client"]: call["outcome"] for call in calls if call["phase"] == EVALUATE}
    assert outcomes == {"client-000": "counted", "client-001": "failed", "client-002": "counted"}
    assert reason in caplog.text


@pytest.mark.parametrize("data", [{"name": "own"}, {"name": "digits", "holdout": 0.1}])
def test_the_server_cannot_evaluate_on_training_data_that_it_lacks(
    data: dict[str, Any], make_settings: MakeSettings
) -> None:
    with raises(SettingsError, source="settings"):
        make_settings(data=data, evaluation={"training": True})
    make_settings(data=data)
