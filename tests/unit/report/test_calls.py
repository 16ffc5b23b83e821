"""Latencies, waiting, stages and bytes are those of the calls."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.report import summary
from fenchel.report.latency import histograms
from fenchel.report.render.tables import write_tables
from fenchel.report.run import Run
from fenchel.report.traffic import carried_by
from fenchel.report.waiting import Waiting, thinned, waiting_of


def test_every_answered_call_is_in_its_bin(altered: Callable[..., Run], finished: Run) -> None:
    number = finished.calls_table.num_rows
    run = altered(calls={"total_s": [*np.geomspace(0.0001, 10.0, number).tolist()[:-1], math.nan]})
    found = {one.phase: one for one in histograms(run.calls_table) if one.what == "total"}
    assert sum(int(one.counts.sum()) for one in found.values()) == number - 1
    for phase, one in found.items():
        seconds = run.calls["total_s"][run.calls["phase"] == phase].dropna()
        expected, _ = np.histogram(seconds, one.edges)
        assert np.abs(np.cumsum(one.counts) - np.cumsum(expected)).max() <= 1  # a value on an edge
        assert one.p90 == pytest.approx(seconds.quantile(0.9))
        np.testing.assert_allclose(one.edges[1:] / one.edges[:-1], 10**0.1)


def test_latencies_and_costs_of_phases_agree_on_their_medians(altered: Callable[..., Run], finished: Run) -> None:
    rows = finished.calls_table.num_rows
    outcomes = ["late", "failed", *["counted"] * (rows - 2)]
    run = altered(calls={"outcome": outcomes, "total_s": [100.0, 200.0, *np.linspace(1.0, 2.0, rows - 2).tolist()]})
    found = {one.phase: one for one in histograms(run.calls_table) if one.what == "total"}
    for costs in summary.costs_by(run.calls_table, "phase"):
        assert found[costs.name].p50 == costs.total_p50
        assert found[costs.name].counts.sum() == costs.answered


def test_a_latency_of_nothing_is_counted_too(altered: Callable[..., Run], finished: Run) -> None:
    run = altered(calls={"network_s": [0.0] * finished.calls_table.num_rows})
    found = [one for one in histograms(run.calls_table) if one.what == "network"]
    assert sum(int(one.counts.sum()) for one in found) == finished.calls_table.num_rows


def test_the_map_of_waiting_agrees_with_pandas(finished: Run) -> None:
    found = waiting_of(finished.calls_table)
    asked = finished.calls[finished.calls["kind"] == "ask"]
    took = (asked["total_s"] + asked["take_s"]).groupby([asked["client"], asked["round"]]).sum()
    waited = asked["waiting_s"].groupby([asked["client"], asked["round"]]).sum()
    assert sorted(found.clients) == sorted(asked["client"].unique())
    for row, client in enumerate(found.clients):
        for column, t in enumerate(found.rounds):
            assert found.took[row, column] == pytest.approx(took[client, int(t)])
            assert found.waited[row, column] == pytest.approx(waited[client, int(t)])
    means = found.took.mean(axis=1)
    assert (np.diff(means) <= 0).all()
    assert not found.missed.any()


def test_a_silent_client_is_missed_and_the_slowest_of_all(altered: Callable[..., Run], finished: Run) -> None:
    silent = finished.calls["client"] == "client-001"
    run = altered(
        calls={
            "outcome": np.where(silent, "unanswered", "counted").tolist(),
            "total_s": np.where(silent, math.nan, 0.5).tolist(),
        }
    )
    found = waiting_of(run.calls_table)
    assert found.clients[0] == "client-001"
    assert found.missed[0].tolist() == [1, 1, 1]
    assert np.isnan(found.took[0]).all()
    assert not found.missed[1:].any()


def test_tables_of_older_versions_say_what_they_know(
    tmp_path: Path, altered: Callable[..., Run], finished: Run
) -> None:
    older = finished.calls_table.drop_columns(["waiting_s", "take_s", "serialisation_s", "socket_down", "socket_up"])
    run = altered(calls=older)
    assert np.isfinite(waiting_of(run.calls_table).took).all()
    assert np.isnan(waiting_of(run.calls_table).waited).all()
    (stages,) = (path for path in write_tables([run], tmp_path) if path.stem == "time-by-client")
    assert {row["mean_serialisation_s"] for row in csv.DictReader(stages.read_text().splitlines())} == {""}
    assert np.isnan(carried_by(run.calls_table, "phase").layers["socket"]["down"]).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_a_thinned_map_keeps_counts_and_means(rows: int, columns: int, clients: int, rounds: int) -> None:
    values = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    full = Waiting(
        clients=[f"c{row}" for row in range(rows)],
        rounds=[str(column) for column in range(columns)],
        took=values,
        waited=np.where(values % 3 == 0, np.nan, values),
        missed=(values % 2).astype(np.int64),
    )
    small = thinned(full, clients, rounds)
    shape = (min(rows, clients), min(columns, rounds))
    assert small.took.shape == small.waited.shape == small.missed.shape == shape
    assert (len(small.clients), len(small.rounds)) == shape
    assert small.missed.sum() == full.missed.sum()
    groups = np.array_split(np.arange(rows), shape[0]), np.array_split(np.arange(columns), shape[1])
    for i, few in enumerate(groups[0]):
        for j, some in enumerate(groups[1]):
            assert small.took[i, j] == pytest.approx(full.took[np.ix_(few, some)].mean())
            known = full.waited[np.ix_(few, some)]
            known = known[np.isfinite(known)]
            assert np.isnan(small.waited[i, j]) if not known.size else small.waited[i, j] == pytest.approx(known.mean())


def test_bytes_by_phase_are_the_sums_of_the_table(finished: Run) -> None:
    for key in ("phase", "client"):
        found, mine = carried_by(finished.calls_table, key), finished.calls.groupby(key, sort=False)
        assert found.names == list(mine.groups)
        np.testing.assert_array_equal(found.calls, mine.size())
        np.testing.assert_array_equal(found.layers["payload"]["down"], mine["bytes_down"].sum())
        np.testing.assert_array_equal(found.layers["wire"]["up"], mine["wire_up"].sum())
