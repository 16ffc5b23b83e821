"""Runs that differ only in their seed are one row and one curve, with an interval of Student's t."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fenchel.report.groups import Estimate, bands_of, estimate, groups_of, run_names
from fenchel.report.render import terminal
from fenchel.report.render.charts import chart_data
from fenchel.report.render.figure import draw
from fenchel.report.render.page import render
from fenchel.report.render.tables import write_tables
from fenchel.report.run import Run
from tests.unit.report.conftest import shown

T_975 = {1: 12.7062, 2: 4.30265, 4: 2.77645}
"""Quantiles of Student's t as they are printed in tables, by degrees of freedom."""


@pytest.fixture
def seeded(altered: Callable[..., Run]) -> Callable[..., Run]:
    """Return a function that copies the finished run with another seed, step size, objective and accuracy."""

    def copy(seed: int, objective: float, step: float = 0.5, **summary: Any) -> Run:
        def settings(text: str) -> str:
            return text.replace("seed: 7", f"seed: {seed}").replace("step_size: 0.5", f"step_size: {step}")

        figures = {"objective": objective, "test_accuracy": 0.5 + objective / 10}
        metrics = {"objective": [objective + 2, objective + 1, objective]}
        name = f"run-{seed}-{step}-{objective}"
        return altered(name, metrics=metrics, summary={"figures": figures} | summary, settings=settings)

    return copy


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.5, 0.25, 1.0], [3.0, 1.0, 4.0, 1.0, 5.0]])
def test_the_interval_is_that_of_a_table_of_t_and_of_scipy(values: list[float]) -> None:
    found = estimate(values)
    count = len(values)
    half_width = T_975[count - 1] * statistics.stdev(values) / math.sqrt(count)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.half_width == pytest.approx(half_width, rel=1e-5)
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_of_one_seed_there_is_no_interval() -> None:
    assert estimate([0.25]).text("objective") == "0.25"
    assert math.isnan(estimate([0.25]).half_width)
    assert estimate([]).text("objective") == "–"
    assert Estimate(0.9, 0.01, 3).text("test_accuracy") == "90.0% ± 1.0%"
    assert Estimate(0.93216, 0.022334, 3).text("objective") == "0.9322 ± 0.0223"
    assert Estimate(123.4567, 0.02, 3).text("objective") == "123.5 ± 0.02"


def test_runs_that_differ_in_more_than_the_seed_are_groups_of_their_own(seeded: Callable[..., Run]) -> None:
    runs = [seeded(1, 1.0), seeded(1, 2.0, step=0.25), seeded(2, 2.0), seeded(2, 5.0, step=0.25), seeded(3, 3.0)]
    first, second = groups_of(runs)
    assert (first.runs, second.runs) == ((runs[0], runs[2], runs[4]), (runs[1], runs[3]))
    assert (first.name, second.name) == ("step_size 0.5", "step_size 0.25")
    assert first.estimate("objective").mean == 2.0
    assert second.estimate("objective").half_width == pytest.approx(T_975[1] * 1.5, rel=1e-5)
    assert run_names([first, second], runs)[3] == "step_size 0.25, seed 2"


def test_a_seed_that_diverged_is_in_the_mean(seeded: Callable[..., Run]) -> None:
    (group,) = groups_of([seeded(1, 1.0), seeded(2, math.inf), seeded(3, 3.0)])
    found = group.estimate("objective")
    assert (found.mean, found.seeds, found.text("objective")) == (math.inf, 3, "inf")


def test_runs_with_one_seed_are_not_grouped(seeded: Callable[..., Run]) -> None:
    assert groups_of([seeded(1, 1.0), seeded(1, 2.0)]) == []
    assert groups_of([seeded(1, 1.5), seeded(2, 2.0, step=0.25)]) == []


def test_a_key_that_is_null_is_as_one_that_is_missing(seeded: Callable[..., Run]) -> None:
    one, other = seeded(1, 1.0), seeded(2, 2.0)
    text = (other.path / "settings.yaml").read_text()
    (other.path / "settings.yaml").write_text(text.replace("  test_seed: null\n", ""))
    assert len(groups_of([one, Run(other.path)])) == 1
    (other.path / "settings.yaml").write_text(text.replace("test_seed: null", "test_seed: 3"))
    assert groups_of([one, Run(other.path)]) == []


def test_stopped_runs_and_repeated_seeds_are_not_counted(seeded: Callable[..., Run]) -> None:
    stopped = seeded(3, 100.0, completed=False, reason="diverged")
    runs = [seeded(1, 1.0), seeded(2, 2.0), stopped, seeded(2, 4.0)]
    (group,) = groups_of(runs)
    assert group.runs == tuple(runs)
    assert group.counted == (runs[0], runs[3])
    assert group.seeds_text == "2 of 3"
    assert group.estimate("objective") == estimate([1.0, 4.0], (0.0, math.inf))


def test_a_band_has_the_means_and_intervals_of_each_round(seeded: Callable[..., Run]) -> None:
    runs = [seeded(1, 1.0), seeded(2, 2.0), seeded(3, 3.0)]
    groups = groups_of(runs)
    (band,) = bands_of(groups, runs)
    half_width = T_975[2] / math.sqrt(3)
    np.testing.assert_allclose(band.curves.figures["objective"], [4, 3, 2])
    lows = np.maximum(np.array([4, 3, 2]) - half_width, 0)
    np.testing.assert_allclose(band.low["objective"], lows, rtol=1e-5)
    np.testing.assert_allclose(band.high["objective"], np.array([4, 3, 2]) + half_width, rtol=1e-5)
    (drawn,) = chart_data(runs, ["a", "b", "c"])["groups"]
    assert drawn["curves"]["objective"]["low"] == pytest.approx(lows.tolist(), rel=1e-5)
    (shifted,) = bands_of(groups, runs, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(shifted.curves.figures["optimality_gap"], [3, 2, 1])


def test_intervals_are_cut_at_the_range_of_a_figure(seeded: Callable[..., Run], tmp_path: Path) -> None:
    runs = [seeded(1, 0.1), seeded(2, 4.9)]
    (group,) = groups_of(runs)
    accuracy, objective = group.estimate("test_accuracy"), group.estimate("objective")
    assert (accuracy.low, accuracy.high, objective.low) == (0, 1, 0)
    assert objective.high == pytest.approx(2.5 + objective.half_width)
    (band,) = bands_of([group], runs, [10.0, 10.0])
    assert band.low["objective"].min() == 0
    assert band.low["optimality_gap"].max() < -10, "a gap to an optimum that is not exact may be negative"
    write_tables(runs, tmp_path)
    seeds = {row.split(",")[1]: row.split(",")[4:] for row in (tmp_path / "seeds.csv").read_text().splitlines()}
    assert [float(end) for end in seeds["test_accuracy"]] == [0, 1]


def test_losses_of_an_objective_from_outside_may_be_negative(seeded: Callable[..., Run]) -> None:
    runs = [seeded(1, 0.1), seeded(2, 4.9)]
    for run in runs:
        run.settings_values["objective"] = {"kind": "own", "name": "module:Loss"}
    (group,) = groups_of(runs)
    assert group.estimate("objective").low == pytest.approx(2.5 - group.estimate("objective").half_width)


def test_a_band_covers_the_rounds_that_all_seeds_have(seeded: Callable[..., Run]) -> None:
    runs = [seeded(1, 1.0), seeded(2, 2.0)]
    runs[1].metrics_table = runs[1].metrics_table.slice(1)
    (band,) = bands_of(groups_of(runs), runs)
    assert band.curves.costs["round"].tolist() == [2, 3]
    assert band.curves.figures["objective"].tolist() == [2.5, 1.5]


def test_a_group_with_one_completed_seed_has_no_band(seeded: Callable[..., Run]) -> None:
    runs = [seeded(1, 1.0), seeded(2, 2.0, completed=False)]
    (band,) = bands_of(groups_of(runs), runs)
    assert band.low == {}
    (drawn,) = chart_data(runs, ["a", "b"])["groups"]
    assert "low" not in drawn["curves"]["objective"]
    rows = [line for line in shown(*runs).splitlines() if "1 of 2" in line]
    assert len(rows) == 1
    assert "±" not in rows[0]


def test_terminal_page_json_table_and_picture_show_the_groups(seeded: Callable[..., Run], tmp_path: Path) -> None:
    runs = [seeded(1, 1.0), seeded(2, 2.0), seeded(3, 3.0, step=0.25)]
    objective = estimate([1.0, 2.0]).text("objective")
    text = shown(*runs)
    assert "step_size 0.25" in text
    assert objective in text
    assert len([line for line in text.splitlines() if "step_size" in line]) == 2
    page = render(runs)
    assert objective in page
    assert "step_size 0.5, seed 2" in page
    settings = page[page.index("Settings that differ") : page.index("Run by run")]
    assert re.findall("<code>(.*?)</code>", settings) == ["algorithm.step_size"]
    values = json.loads(json.dumps(terminal.as_json(runs), allow_nan=False))
    assert values["groups"][0]["figures"]["objective"]["seeds"] == 2
    assert values["groups"][1]["figures"]["objective"] == {"mean": 3.0, "low": None, "high": None, "seeds": 1}
    write_tables(runs, tmp_path / "csv")
    rows = list(csv.DictReader((tmp_path / "csv" / "seeds.csv").read_text().splitlines()))
    assert [row["mean"] for row in rows if row["figure"] == "objective"] == ["1.5", "3.0"]
    assert draw(runs, tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_without_seeds_is_as_before(finished: Run, tmp_path: Path) -> None:
    other = Run(shutil.copytree(finished.path, tmp_path / "other"))
    assert chart_data([finished, other], ["a", "b"])["groups"] == []
    assert "Seeds" not in render([finished, other])
