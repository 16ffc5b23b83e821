"""What a resumed run waited for its clients is found in its tables, taken out, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenchel.report.resumption import away_of, steady
from fenchel.report.run import Run

SLACK = 1e-5  # seconds: times of day are known to a quarter of a microsecond
NAMES = ("client-000", "client-001", "client-002")


def resumed(run: Run, away: dict[str, float], kind: str = "ask") -> tuple[pa.Table, pa.Table]:
    """Return the tables that a run would have, had its clients come back so long after round 2 first asked them."""
    metrics, calls = run.metrics_table.to_pandas(), run.calls_table.to_pandas()
    calls.loc[calls["round"] >= 2, "sequence"] += 1 << 32
    if kind == "inspect":  # a round in which nobody is asked before the evaluation
        calls = calls[(calls["round"] != 2) | (calls["kind"] == "inspect")].reset_index(drop=True)
    first = (calls["round"] == 2) & (calls["kind"] == kind)
    before = ended(calls[first]).max()
    late = calls["client"].map(away).where(first, 0.0)
    for name in ("away_s", "total_s", "arrived_s", "replied_s"):
        calls[name] += late
    ends = ended(calls[first])
    last, delay = ends.idxmax(), ends.max() - before
    closing = run.calls_table.to_pandas()["waiting_s"].min()
    calls.loc[first, "waiting_s"] = ends.max() - ends + closing
    following = (calls["round"] > 2) | ((calls["round"] == 2) & (calls["kind"] == "inspect") & ~first)
    calls.loc[following, "queued_unix"] += delay
    of_round = metrics["round"] == 2
    if kind == "inspect":
        metrics.loc[of_round, "evaluation_s"] += delay
    else:
        metrics.loc[of_round, "seconds"] += delay
        metrics.loc[of_round, "away_s"] = calls["away_s"][last]
        metrics.loc[of_round, "idle_s"] = (ends.max() - ends).mean()
    metrics.loc[metrics["round"] > 2, "started_unix"] += delay
    return pa.Table.from_pandas(metrics), pa.Table.from_pandas(calls)


def ended(calls: Any) -> Any:
    return calls["queued_unix"] + calls["total_s"] + calls["take_s"]


def test_a_run_that_was_never_resumed_is_left_as_it_is(finished: Run) -> None:
    assert finished.steady.calls is finished.calls_table
    assert finished.steady.metrics is finished.metrics_table
    assert finished.steady.seconds == 0


def test_where_all_are_back_at_once_the_tables_are_those_of_a_run_without_a_break(finished: Run) -> None:
    found = steady(*resumed(finished, dict.fromkeys(NAMES, 30.0)))
    before, after = finished.calls, found.calls.to_pandas()
    for name in ("away_s", "queue_s", "total_s", "arrived_s", "replied_s"):
        np.testing.assert_allclose(after[name], before[name], atol=SLACK)
    np.testing.assert_allclose(found.rounds, [0.0, 30.0, 0.0], atol=SLACK)
    rounds = found.metrics.to_pandas()
    for name in ("seconds", "away_s", "queueing_s"):
        np.testing.assert_allclose(rounds[name], finished.metrics[name], atol=SLACK)
    np.testing.assert_allclose(
        rounds["started_unix"] + rounds["seconds"],
        resumed(finished, dict.fromkeys(NAMES, 30.0))[0].to_pandas()[["started_unix", "seconds"]].sum(axis=1),
        atol=SLACK,
    )


@given(st.lists(st.floats(0.0, 1e4), min_size=3, max_size=3))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_round_is_shorter_by_what_its_last_answer_waited_for_its_client(finished: Run, away: list[float]) -> None:
    metrics, calls = resumed(finished, dict(zip(NAMES, away, strict=True)))
    found = steady(metrics, calls)
    frame = calls.to_pandas()
    asked = frame[(frame["round"] == 2) & (frame["kind"] == "ask")]
    last = ended(asked).idxmax()
    np.testing.assert_allclose(found.rounds, [0.0, asked["away_s"][last], 0.0], atol=SLACK)
    np.testing.assert_allclose(found.evaluations, 0.0)
    before, after = metrics.to_pandas(), found.metrics.to_pandas()
    np.testing.assert_allclose(before["seconds"] - after["seconds"], found.rounds)
    np.testing.assert_allclose(before["away_s"] - after["away_s"], found.rounds)
    assert (after[["seconds", "away_s", "idle_s"]] >= -SLACK).all(axis=None)
    assert (after["idle_s"] <= before["idle_s"] + SLACK).all()
    waited = found.calls.to_pandas()["waiting_s"]
    assert (waited >= -SLACK).all()


def test_an_evaluation_that_asks_first_is_shorter_too(finished: Run) -> None:
    away = dict(zip(NAMES, (1.0, 7.0, 3.0), strict=True))
    metrics, calls = resumed(finished, away, kind="inspect")
    found = steady(metrics, calls)
    assert found.rounds.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(found.evaluations, [0.0, 7.0, 0.0], atol=0.5)
    evaluation = found.metrics.to_pandas()["evaluation_s"]
    np.testing.assert_allclose(evaluation + found.evaluations, metrics.to_pandas()["evaluation_s"])


def test_what_waits_for_a_client_beside_a_promise_waits_for_as_long(finished: Run) -> None:
    calls = finished.calls_table.to_pandas().head(4)
    calls["client"], calls["sequence"], calls["kind"] = ("a", (1 << 32) + np.arange(4), ["tell", "ask", "ask", "ask"])
    calls["queued_unix"] = 1e9 + np.array([0.0, 2.0, 9.0, 12.0])
    calls["away_s"], calls["queue_s"] = [8.0, 6.5, 0.25, 0.0], [0.1, 0.2, 0.3, np.nan]
    assert away_of(pa.Table.from_pandas(calls)).tolist() == [8.0, 6.0, 0.0, 0.0]


def test_rows_of_a_version_that_noted_no_absence_are_left_as_they_are(finished: Run) -> None:
    metrics, calls = resumed(finished, dict.fromkeys(NAMES, 0.0))
    nothing = pa.nulls(calls.num_rows, pa.float64())
    old = calls.set_column(calls.column_names.index("away_s"), "away_s", nothing)
    assert not away_of(old).any()
    assert steady(metrics, old).calls["total_s"].to_pylist() == calls["total_s"].to_pylist()
