"""CODA's new alpha after a stage: what it maximises, and what clients may report for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize_scalar

from fenchel.algorithms.auc.coda import CodaClient
from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError, TooFewRepliesError
from fenchel.common.wire.values import Values
from fenchel.testing import load_model
from tests.algorithms.auc_runs import points, random_parts, scored
from tests.algorithms.codasca_oracle import Part
from tests.algorithms.mlr import Run, train
from tests.messages import raises

CODA: dict[str, Any] = {
    "name": "coda",
    "batch_size": 8,
    "local_steps": 2,
    "step_size": 0.1,
    "schedule": {"kind": "practice", "stage_steps": 4},
}


def best_alpha(parts: Sequence[Part], shares: Sequence[float], u: Vector, p: float) -> float:
    """The maximiser of F over alpha, found by search: clients count alike, and these shares of theirs are positive."""

    def loss(alpha: float) -> float:
        total = 0.0
        for part, share in zip(parts, shares, strict=True):
            for sign, weight in ((1, share), (-1, 1 - share)):
                own = part.y == sign
                if weight:
                    at = np.append(u[:-1], alpha)
                    total -= weight * Part(part.x[own], part.y[own]).value(at, p)
        return total

    return float(minimize_scalar(loss, options={"xtol": 1e-10}).x)


def one_stage(parts: Sequence[Part], folder: Path, **keys: Any) -> Run:
    return train(scored(parts), folder, CODA | keys, rounds=2)


@pytest.mark.parametrize("prior", [None, 0.15, 0.7])
def test_the_new_alpha_is_the_maximiser_for_any_prior(prior: float | None, tmp_path: Path) -> None:
    parts = random_parts([20, 35, 28], 3, seed=21)
    rates = [part.rate for part in parts]
    run = one_stage(parts, tmp_path, prior=prior)
    u = points(run)[-1]
    assert run.states[2].share == pytest.approx(np.mean(rates))
    assert u[-1] == pytest.approx(best_alpha(parts, rates, u, prior or float(np.mean(rates))), abs=1e-6)


@pytest.mark.parametrize("output", ["average", "last"])
def test_a_run_that_ends_inside_a_stage_renews_alpha_as_at_its_end(output: str, tmp_path: Path) -> None:
    parts = random_parts([20, 35, 28], 3, seed=24)
    schedule = {"kind": "practice", "stage_steps": 8}
    run = train(scored(parts), tmp_path, CODA | {"schedule": schedule, "output": output}, rounds=3)
    alpha = pq.read_table(run.folder.metrics)["alpha"].to_pylist()[-1]
    u = np.append(load_model(run.folder), [0.0, 0.0, 0.0])  # the maximiser depends on w alone
    rates = [part.rate for part in parts]
    assert alpha == pytest.approx(best_alpha(parts, rates, u, float(np.mean(rates))), abs=1e-6)


@pytest.mark.parametrize("prior", [None, 0.3])
def test_the_new_alpha_is_the_maximiser_for_stratified_batches(prior: float | None, tmp_path: Path) -> None:
    parts = random_parts([20, 35, 28], 3, seed=22)
    parts[1].y[:] = -1.0
    parts[1].y[4] = 1.0  # a single positive sample counts for its share of the batches
    run = one_stage(parts, tmp_path, batches="stratified", prior=prior)
    drawn = [max(1, round(8 * part.rate)) / 8 for part in parts]
    u, p = points(run)[-1], float(np.mean(drawn)) if prior is None else prior
    expected = best_alpha(parts, drawn, u, p)
    assert u[-1] == pytest.approx(expected, abs=1e-6)
    natural = best_alpha(parts, [part.rate for part in parts], u, p)
    assert abs(natural - expected) > 1e-3, "another distribution has another maximiser"


def test_a_part_of_the_samples_gives_an_estimate_of_the_same(tmp_path: Path) -> None:
    parts = random_parts([60, 80], 3, seed=23)
    whole, some = (points(one_stage(parts, tmp_path, dual_batch_size=size, prior=0.3))[-1] for size in (None, 40))
    np.testing.assert_array_equal(whole[:-1], some[:-1])
    assert whole[-1] != some[-1]
    assert whole[-1] == pytest.approx(some[-1], abs=0.3)


def test_means_of_clients_are_refused_with_a_prior_of_another_kind(tmp_path: Path) -> None:
    with raises(SettingsError, key="algorithm", source="settings"):
        one_stage(random_parts([9], 3, seed=1), tmp_path, dual_estimator="client-means", prior=0.3)


HONEST = {"positives": 5, "negatives": 15, "positive_sum": 1.0, "negative_sum": -2.0}


@pytest.mark.parametrize(
    ("report", "output", "message"),
    [
        ({"positives": 6, "negatives": 14}, "none", "6 positive and 14 negative .* 5 of them positive"),
        ({"positives": -1, "negatives": 21}, "none", "-1 positive"),
        ({"positives": 5, "negatives": 14}, "none", "drew 20 of its 20 samples"),
        ({"positives": 5, "negatives": 1 << 40}, "none", "drew 20 of its 20 samples"),
        ({"positive_sum": 1e300}, "none", "add up to 1e\\+300"),
        ({"positive_sum": 5.5, "negative_sum": 1.0}, "sigmoid", "5 samples add up to 5.5"),
        ({"positive_sum": 1.0, "negative_sum": -0.1}, "sigmoid", "from 0 to 15"),
        ({"positive_sum": 2.5, "negative_sum": 0.0}, "l2", "add up to 2.5"),
    ],
)
def test_a_report_that_no_batch_can_give_does_not_count_and_the_others_go_on(
    report: dict[str, Any],
    output: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = random_parts([20, 35], 3, seed=25)
    parts[0].y[:] = np.repeat([1.0, -1.0], [5, 15])
    reporting(report, ["client-000"], monkeypatch)
    file = tmp_path / "start.npz"
    np.savez(file, model=np.ones(3))
    objective = {"kind": "binary", "dtype": "float64", "output": output, "initial": {"file": str(file)}}
    run = train(scored(parts), tmp_path, CODA, rounds=2, objective=objective)
    assert re.search(f"phase 'score': client client-000 failed: .*{message}", caplog.text)
    u = points(run)[-1]
    raw = parts[1].x @ u[:3]
    h = {"none": raw, "sigmoid": 1 / (1 + np.exp(-raw)), "l2": raw / np.linalg.norm(raw)}[output]
    positive = parts[1].y > 0
    assert u[-1] == pytest.approx(h[~positive].mean() - h[positive].mean(), abs=1e-12)


def reporting(report: dict[str, Any], liars: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CodaClient.score

    def score(self: CodaClient, point: Vector) -> Values:
        return {**HONEST, **report} if self.client in liars else honest(self, point)

    score.answers_phase = "score"  # type: ignore[attr-defined]
    monkeypatch.setattr(CodaClient, "score", score)


def test_where_all_reports_are_impossible_the_run_stops_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting({"positive_sum": 1e300}, ["client-000"], monkeypatch)
    parts = random_parts([20], 3, seed=25)
    parts[0].y[:] = np.repeat([1.0, -1.0], [5, 15])
    with raises(TooFewRepliesError, round=2, phase="score"):
        train(scored(parts), tmp_path, CODA, rounds=2)


@pytest.mark.parametrize("output", ["none", "sigmoid", "l2"])
def test_honest_reports_pass(output: str, tmp_path: Path) -> None:
    file = tmp_path / "start.npz"
    np.savez(file, model=np.ones(3))
    objective = {"kind": "binary", "dtype": "float32", "output": output, "initial": {"file": str(file)}}
    for size in (None, 7):
        run = train(
            scored(random_parts([20, 35], 3, seed=26)),
            tmp_path,
            CODA | {"dual_batch_size": size},
            rounds=2,
            objective=objective,
        )
        assert np.isfinite(points(run)).all()
