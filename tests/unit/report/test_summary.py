"""Totals and quantiles are those of the tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from fenchel.report import columns, summary
from fenchel.report.run import Run
from fenchel.report.traffic import totals


def test_the_parts_of_the_time_add_up_to_the_seconds_of_the_rounds(finished: Run) -> None:
    split = summary.time_split(finished.metrics_table)
    assert sum(split.values()) == pytest.approx(finished.metrics["seconds"].sum(), rel=1e-9)
    assert min(summary.shown(split).values()) >= 0


def test_traffic_is_the_sum_over_rounds(finished: Run) -> None:
    traffic = totals(finished.metrics_table)
    assert traffic["payload_up"] == 3 * 3 * 640 * 8
    assert traffic["wire_up"] > traffic["payload_up"]


def test_what_crossed_the_sockets_is_known_where_every_round_knows_it(
    altered: Callable[..., Run], finished: Run
) -> None:
    assert math.isnan(totals(finished.metrics_table)["socket_down"])  # there is none within one process
    known = altered(metrics={"socket_down": [1.0, 2.0, 4.0], "socket_up": [1.0, math.nan, 4.0]})
    traffic = totals(known.metrics_table)
    assert traffic["socket_down"] == 7.0
    assert math.isnan(traffic["socket_up"])


def test_a_run_without_a_round_has_no_traffic(finished: Run) -> None:
    traffic = totals(finished.metrics_table.slice(0, 0))
    assert [traffic[f"{layer}_{way}"] for layer in ("payload", "wire") for way in ("down", "up")] == [0.0] * 4
    assert math.isnan(traffic["socket_up"])


def test_the_network_is_serialisation_and_propagation(finished: Run) -> None:
    serialisation, propagation = summary.network_split(finished.metrics_table)
    network = summary.time_split(finished.metrics_table)["network"]
    assert serialisation >= 0
    assert serialisation + propagation == pytest.approx(network)
    old = finished.metrics_table.drop_columns(["serialisation_s"])
    assert all(math.isnan(part) for part in summary.network_split(old))


def test_time_that_a_client_invents_does_not_make_the_bars_negative(altered: Callable[..., Run], finished: Run) -> None:
    run = altered(metrics={"unaccounted_s": [-5.0, 0.25, 0.0]})
    assert summary.time_columns(run.metrics_table)["unaccounted"].tolist() == [0.0, 0.25, 0.0]


def test_costs_of_phases_agree_with_pandas(finished: Run) -> None:
    for costs in summary.costs_by(finished.calls_table, "phase"):
        rows = finished.calls[finished.calls["phase"] == costs.name]
        assert (costs.calls, costs.answered, costs.kind) == (9, 9, rows["kind"].iloc[0])
        assert costs.total_p50 == pytest.approx(rows["total_s"].median())
        assert costs.total_p90 == pytest.approx(rows["total_s"].quantile(0.9))
        assert costs.compute_p90 == pytest.approx(rows["compute_s"].quantile(0.9))
        assert costs.network_p50 == pytest.approx(rows["network_s"].median())
        whole = rows["total_s"] + rows["take_s"] + rows["waiting_s"]
        assert sum(costs.mean.values()) == pytest.approx(whole.mean())
        assert costs.mean["waiting"] == pytest.approx(rows["waiting_s"].mean())


def test_costs_of_clients_leave_out_the_evaluation(finished: Run) -> None:
    costs = summary.costs_by(summary.own_calls(finished.calls_table), "client")
    assert [one.calls for one in costs] == [3, 3, 3]
    assert {one.kind for one in costs} == {"ask"}


def test_a_client_that_never_answers_is_counted_and_comes_first(altered: Callable[..., Run], finished: Run) -> None:
    silent = finished.calls["client"] == "client-001"
    outcomes = np.where(silent, "unanswered", "counted").tolist()
    seconds = np.where(silent, math.nan, 0.5).tolist()
    run = altered(calls={"outcome": outcomes, "total_s": seconds})
    first, *others = summary.costs_by(summary.own_calls(run.calls_table), "client")
    assert (first.name, first.calls, first.answered, first.unanswered) == ("client-001", 3, 0, 3)
    assert math.isnan(first.total_p50)
    assert all(other.total_p50 == 0.5 for other in others)


def test_late_and_failed_answers_do_not_enter_the_times() -> None:
    outcomes = ["counted", "late", "failed", "confirmed"]
    calls = {"client": ["a"] * 4, "kind": ["ask"] * 4, "outcome": outcomes, "total_s": [1.0, 100.0, 100.0, 3.0]}
    (costs,) = summary.costs_by(pa.table(calls), "client")
    assert (costs.answered, costs.late, costs.failed, costs.total_p50) == (2, 1, 1, 2.0)


def test_a_table_without_a_column_gives_nan_and_without_rows_no_costs() -> None:
    assert np.isnan(columns.column(pa.table({"round": [1, 2]}), "objective")).tolist() == [True, True]
    assert summary.costs_by(pa.table({"round": pa.array([], pa.int32())}), "phase") == []


def test_only_settings_that_differ_are_named(altered: Callable[..., Run], finished: Run) -> None:
    other = altered(settings=lambda text: text.replace("seed: 7", "seed: 8").replace("name: tiny", "name: other"))
    assert summary.differing_settings([finished, other]) == {"seed": [7, 8]}
    assert summary.differing_settings([finished]) == {}


def test_a_setting_that_a_run_does_not_have_is_none_there(altered: Callable[..., Run], finished: Run) -> None:
    other = altered(settings=lambda text: text.replace("  step_size: 0.5\n", ""))
    assert summary.differing_settings([finished, other]) == {"algorithm.step_size": [0.5, None]}


def test_runs_are_called_by_the_shortest_name_that_tells_them_apart(altered: Callable[..., Run]) -> None:
    first, second = altered("20260101-000000-tiny-aaaa"), altered("20260102-000000-tiny-bbbb")
    other = altered("20260103-000000-other-cccc", settings=lambda text: text.replace("name: tiny", "name: other"))
    assert summary.labels([first, second, other]) == ["tiny-aaaa", "tiny-bbbb", "other"]
    again = altered("20260104-000000-tiny-aaaa")
    assert summary.labels([first, again]) == [first.id, again.id]


@pytest.mark.parametrize(("part", "name"), [("compute", "compute_s"), ("network", "network_s")])
def test_a_part_that_a_table_does_not_have_is_not_known(finished: Run, part: str, name: str) -> None:
    for costs in summary.costs_by(finished.calls_table.drop_columns([name]), "phase"):
        assert math.isnan(costs.mean[part])
        assert math.isnan(costs.mean["unaccounted"])
