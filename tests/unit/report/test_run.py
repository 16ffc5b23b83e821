"""A run folder is read as it is, whatever became of the run."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

import fenchel
from fenchel.common.errors import CheckpointError, SettingsError
from fenchel.common.objectives.metrics import FIGURES
from fenchel.common.storage.round_columns import COUNTS, SOCKETS, TIMES
from fenchel.report import columns
from fenchel.report.render.page import render, write_report
from fenchel.report.render.plots import write_pictures
from fenchel.report.render.tables import write_tables
from fenchel.report.render.trace import events
from fenchel.report.run import Run
from fenchel.report.timeline import Timeline
from tests.messages import raises
from tests.unit.report.conftest import shown

UNPROTECTED = {"name": "hyfdca", "privacy": "none"}


def test_a_finished_run_tells_its_settings_its_rounds_and_its_last_figures(finished: Run) -> None:
    assert (finished.completed, finished.state, finished.rounds) == (True, "completed", 3)
    assert finished.settings.algorithm.name == "fedavg"
    assert finished.summary is not None
    assert finished.figures == finished.summary["figures"]
    assert finished.model.shape == (10 * 64,)
    assert np.isfinite(finished.model).all()
    assert finished.id == finished.path.name


def test_the_last_figures_of_a_run_that_diverged_are_not_those_of_an_earlier_round(altered: Callable[..., Run]) -> None:
    metrics = {"objective": [0.5, math.inf, math.inf], "test_loss": [0.4, math.inf, math.nan]}
    run = altered(metrics=metrics, summary={"completed": False, "figures": {}})
    assert (run.figures["objective"], run.figures["test_loss"]) == (math.inf, math.inf)


def test_a_last_evaluation_without_all_clients_is_a_warning(altered: Callable[..., Run], finished: Run) -> None:
    def without(name: str, t: int) -> Run:
        rows = finished.calls_table.select(["round", "kind", "client", "outcome"]).to_pylist()
        lost = {"round": t, "kind": "inspect", "client": "client-001"}
        return altered(
            name, calls={"outcome": ["late" if lost.items() <= row.items() else row["outcome"] for row in rows]}
        )

    assert finished.warnings == without("earlier", 2).warnings == ()
    (warning,) = without("last", 3).warnings
    assert "the evaluation after round 3 lacks 1 of 3 clients" in warning
    assert warning in unescape(render([without("shown", 3)]))


def test_the_report_knows_the_columns_that_a_run_writes(finished: Run) -> None:
    assert finished.metrics_table.column_names == [*COUNTS, *SOCKETS, *TIMES, *FIGURES]
    assert columns.figures(finished.metrics_table) == list(FIGURES)


def test_tables_are_data_frames_where_pandas_is_installed(finished: Run) -> None:
    assert isinstance(finished.metrics, pytest.importorskip("pandas").DataFrame)
    assert finished.calls.groupby("phase").size()["train"] == 9


def test_tables_are_arrow_tables_where_pandas_is_not_installed(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert importlib.util.find_spec("pandas") is None
    assert isinstance(finished.metrics, pa.Table)
    assert isinstance(finished.calls, pa.Table)


def test_figures_of_each_client_are_a_frame_without_rows_where_there_are_none(finished: Run, tmp_path: Path) -> None:
    assert (finished.clients_table.num_rows, finished.clients_table.column_names) == (0, ["round", "client"])
    values = {
        "rounds": 2,
        "clients": 3,
        "data": {"name": "breast_cancer"},
        "objective": {"kind": "logistic", "l2": 0.1},
        "algorithm": {"name": "drfa"},
    }
    run = fenchel.up(values, in_process=True, runs=tmp_path)
    assert run.clients_table.num_rows == 6
    pandas = pytest.importorskip("pandas")
    pandas.testing.assert_frame_equal(run.clients, run.clients_table.to_pandas())
    assert finished.clients.empty


def test_a_killed_run_keeps_every_round_but_the_one_that_was_being_written(killed: Run, finished: Run) -> None:
    assert (killed.summary, killed.completed, killed.state, killed.rounds) == (None, False, "unfinished", 2)
    # Not all figures are known, and nan is not equal to itself.
    assert str(killed.metrics_table.to_pylist()) == str(finished.metrics_table.slice(0, 2).to_pylist())
    assert set(killed.calls_table["round"].to_pylist()) == {1, 2}
    assert killed.figures["objective"] == finished.metrics_table["objective"][1].as_py()


def test_a_run_without_a_model_says_how_far_it_came(killed: Run) -> None:
    with raises(CheckpointError):
        _ = killed.model


@pytest.mark.parametrize("header", [True, False])
def test_a_run_that_has_not_finished_a_round_has_empty_tables(tmp_path: Path, header: bool) -> None:
    (tmp_path / "settings.yaml").write_text("name: young\n")
    if header:
        (tmp_path / "metrics.arrows").touch()
    run = Run(tmp_path)
    assert (run.rounds, run.figures, run.calls_table.num_rows) == (0, {}, 0)


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("metrics", "objective", ["x"] * 3),
        ("metrics", "train_loss", [[1.0]] * 3),
        ("metrics", "round", [1.0, 2.0, 3.0]),
        ("metrics", "round", [1, None, 3]),
        ("calls", "client", [1]),
        ("calls", "phase", [None]),
        ("calls", "total_s", ["x"]),
    ],
)
def test_a_column_of_another_kind_is_refused(
    altered: Callable[..., Run], finished: Run, table: str, column: str, values: list[Any]
) -> None:
    good = getattr(finished, f"{table}_table")
    given = pa.array(values * (good.num_rows // len(values)))
    run = altered(**{table: good.set_column(good.column_names.index(column), column, given)})
    with raises(CheckpointError):
        getattr(run, f"{table}_table")


def test_a_count_beyond_all_that_a_float_can_hold_is_shown(altered: Callable[..., Run]) -> None:
    render([altered(metrics={"bytes_up": [2**63 - 1] * 3})])


@pytest.mark.parametrize("text", ["rounds: " + "9" * 5000, "a: &a {b: *a}", "a: &a [[*a]]", "[" * 5000])
def test_settings_that_are_no_value_are_refused(altered: Callable[..., Run], text: str) -> None:
    run = altered(settings=lambda _: text)
    with raises(CheckpointError, file="settings.yaml"):
        render([run])


def test_a_report_that_cannot_be_written_says_where(finished: Run, tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    for write in (
        lambda: write_report([finished], tmp_path),
        lambda: write_tables([finished], file),
        lambda: write_pictures([finished], file),
    ):
        with raises(SettingsError):
            write()


SUMMARIES = ("{", "[]", '{"seconds": {}}', '{"figures": {"gap": "x"}}', '{"completed": 1}', '{"figures": [1]}')


@pytest.mark.parametrize(
    ("file", "content", "attribute"),
    [
        ("model.npz", "PK\x03\x04 and no more", "model"),
        ("metrics.parquet", "PAR1 and no more", "metrics"),
        *(("summary.json", text, "completed") for text in SUMMARIES),
    ],
)
def test_a_damaged_file_is_refused(altered: Callable[..., Run], file: str, content: str, attribute: str) -> None:
    run = altered()
    (run.path / file).write_text(content)
    with raises(CheckpointError, file=file):
        getattr(run, attribute)


def test_a_folder_that_is_no_run_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with raises(CheckpointError):
        Run(tmp_path)
    with raises(CheckpointError, file="nowhere"):
        Run(tmp_path / "nowhere")


def test_a_run_of_an_unknown_algorithm_is_read_without_importing_it(altered: Callable[..., Run]) -> None:
    run = altered(settings=lambda text: text.replace("fedavg", "not_installed.anywhere:Method"))
    assert run.settings_values["algorithm"]["name"] == "not_installed.anywhere:Method"
    with raises(SettingsError, key="algorithm.name"):
        _ = run.settings


def test_figures_are_the_last_that_are_known(altered: Callable[..., Run]) -> None:
    unknown = math.nan
    figures = altered(
        metrics={"objective": [3.0, 2.0, unknown], "test_loss": [unknown] * 3, "gap": [0.5, 0.25, 0.125]},
        summary={"figures": {}},
    ).figures
    assert (figures["objective"], figures["gap"]) == (2.0, 0.125)
    assert "test_loss" not in figures


def test_what_the_end_of_the_run_adds_to_the_figures_counts(altered: Callable[..., Run]) -> None:
    metrics = {"gap": [0.5, 0.25, 0.125], "objective": [3.0, 2.0, 1.0]}
    run = altered(metrics=metrics, summary={"figures": {"gap": 0.0625}})
    assert (run.figures["gap"], run.figures["objective"]) == (0.0625, 1.0)
    stopped = altered("stopped", metrics=metrics, summary={"completed": False, "figures": {"gap": 9.0}})
    assert stopped.figures["gap"] == 0.125


def test_a_run_repeats_what_it_warned_of(altered: Callable[..., Run], finished: Run) -> None:
    assert finished.warnings == ()
    plaintext = altered(settings=lambda text: yaml.safe_dump(yaml.safe_load(text) | {"algorithm": UNPROTECTED}))
    (warning,) = plaintext.warnings
    assert "the server sees" in warning
    unknown = altered("unknown", settings=lambda text: text.replace("fedavg", "not_installed.anywhere:Method"))
    assert unknown.warnings == ()


def test_a_notebook_shows_a_run_without_interpreting_its_texts(altered: Callable[..., Run]) -> None:
    run = altered("<b>run", summary={"completed": False, "reason": "<script>alert(1)</script>"})
    shown = run._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "<b>" not in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("calls.parquet", "metrics.parquet has rows"),
        ("metrics.parquet", "calls.parquet has rows"),
        ("summary.json", "tables are complete"),
    ],
)
def test_a_file_that_is_missing_is_warned_of(altered: Callable[..., Run], name: str, said: str) -> None:
    run = altered()
    (run.path / name).unlink()
    (warning,) = run.warnings
    assert f"{name} is missing" in warning
    assert said in warning
    assert f"{name} is missing" in shown(run, width=400)
    assert f"{name} is missing" in render([run])


def test_a_run_that_goes_on_or_was_killed_misses_nothing(killed: Run, tmp_path: Path) -> None:
    assert killed.missing == ()
    young = tmp_path / "young"
    young.mkdir()
    (young / "settings.yaml").write_text("name: young\n")
    assert Run(young).missing == ()


def test_a_missing_table_is_not_taken_for_a_run_without_a_round(altered: Callable[..., Run]) -> None:
    run = altered()
    (run.path / "calls.parquet").unlink()
    with raises(CheckpointError):
        list(events(run))
    with raises(CheckpointError):
        Timeline.of(run)
