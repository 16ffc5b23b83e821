"""The CSV files hold the numbers of the charts, under headers that say what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from fenchel.report.render.tables import write_tables
from fenchel.report.run import Run


@pytest.fixture
def read(tmp_path: Path, finished: Run, altered: Callable[..., Run]) -> Callable[[str], Any]:
    other = altered("other", settings=lambda text: text.replace("seed: 7", "seed: 8").replace("tiny", "=other"))
    files = {path.stem: path for path in write_tables([finished, other], tmp_path / "csv", optima=[0.1, 0.1])}
    return lambda name: pyarrow.csv.read_csv(files[name]).to_pandas()


def test_every_round_of_every_run_is_in_the_curves(read: Callable[[str], Any], finished: Run) -> None:
    curves = read("curves")
    assert curves["run"].tolist() == ["tiny"] * 3 + ["=other"] * 3
    mine = curves[curves["run"] == "tiny"]
    np.testing.assert_allclose(mine["objective"], finished.metrics["objective"])
    np.testing.assert_allclose(mine["optimality_gap"], finished.metrics["objective"] - 0.1)
    np.testing.assert_allclose(mine["seconds_so_far_s"], finished.metrics["seconds"].cumsum())
    assert mine["socket_so_far_bytes"].isna().all()


def test_the_parts_of_the_time_add_up(read: Callable[[str], Any], finished: Run) -> None:
    times = read("time-by-round")
    parts = times.drop(columns=["run", "round", "evaluation_s", "idle_s", "seconds_s"])
    np.testing.assert_allclose(parts.sum(axis=1), times["seconds_s"], rtol=1e-6)
    runs = read("time-by-run")
    named = ["setup_s", "rounds_s", "evaluation_s", "rest_s", "paused_s"]
    np.testing.assert_allclose(runs[named].sum(axis=1), runs["wall_s"], rtol=1e-6)
    np.testing.assert_allclose(runs["rounds_s"], times.groupby("run", sort=False)["seconds_s"].sum(), rtol=1e-6)
    stages = read("time-by-client")
    parts = stages.drop(columns=["run", "client", "phase", "answered_calls", "mean_whole_s"])
    np.testing.assert_allclose(parts.sum(axis=1), stages["mean_whole_s"], rtol=1e-6)
    # The stages are most of it; a busy machine may put a process aside for some milliseconds.
    assert (stages["mean_remainder_s"].abs() < 0.5 * stages["mean_whole_s"] + 0.005).all()
    calls = finished.calls.assign(whole=finished.calls[["total_s", "take_s", "waiting_s"]].sum(axis=1))
    means = calls.groupby(["client", "phase"])[["compute_s", "whole"]].mean()
    mine = stages[stages["run"] == "tiny"].set_index(["client", "phase"])[["mean_compute_s", "mean_whole_s"]]
    assert list(mine.index) == list(means.index)
    np.testing.assert_allclose(mine, means)


def test_nothing_is_lost_on_the_way_to_histograms_maps_and_bytes(read: Callable[[str], Any], finished: Run) -> None:
    number = len(finished.calls)
    latency = read("latency")
    assert latency.groupby(["run", "latency"])["calls"].sum().tolist() == [number] * 4
    assert (latency["from_s"] < latency["to_s"]).all()
    assert len(read("waiting")) == 2 * 3 * 3
    for key in ("phase", "client"):
        assert read(f"bytes-by-{key}")["wire_up_bytes"].sum() == 2 * finished.calls["wire_up"].sum()


def test_the_settings_that_differ_have_a_column_for_each_run(read: Callable[[str], Any]) -> None:
    settings = read("settings")
    assert settings.to_dict("records") == [{"setting": "seed", "tiny": 7, "=other": 8}]


def test_one_run_and_an_empty_one_have_tables_too(tmp_path: Path, finished: Run, altered: Callable[..., Run]) -> None:
    files = write_tables([finished], tmp_path / "one")
    assert "settings.csv" not in [path.name for path in files]
    empty = altered(metrics=finished.metrics_table.slice(0, 0), calls=finished.calls_table.slice(0, 0))
    for path in write_tables([empty], tmp_path / "empty"):
        assert len(path.read_text().splitlines()) == (2 if path.name == "time-by-run.csv" else 1)
