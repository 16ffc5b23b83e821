"""The index of run folders lists every run, also a damaged one, from small files."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fenchel.common.errors import CheckpointError
from fenchel.deploy.cli.main import application
from fenchel.report.index import index
from fenchel.report.run import Run
from tests.messages import raises


def copied(run: Run, name: str, parent: Path) -> Path:
    return Path(shutil.copytree(run.path, parent / name))


def test_a_run_is_listed_with_its_settings_and_its_end(finished: Run) -> None:
    (entry,) = index(finished.path.parent)
    assert (entry.id, entry.path, entry.state) == (finished.id, str(finished.path), "completed")
    assert (entry.name, entry.algorithm, entry.data, entry.clients, entry.seed) == ("tiny", "fedavg", "digits", 3, 7)
    assert (entry.rounds, entry.planned) == (3, 3)
    assert entry.objective == finished.figures["objective"]
    assert entry.accuracy == finished.figures["test_accuracy"]
    assert index(finished.path) == [entry]


def test_a_killed_run_is_listed_with_the_rounds_that_were_saved(killed: Run) -> None:
    (entry,) = index(killed.path.parent)
    assert (entry.state, entry.rounds, entry.planned) == ("unfinished", killed.rounds, 3)
    assert entry.objective == killed.figures["objective"]
    (killed.path / "metrics.arrows").write_bytes(b"")
    (entry,) = index(killed.path.parent)
    assert (entry.state, entry.rounds, entry.objective) == ("unfinished", 0, None)


def test_a_run_that_diverged_is_listed_without_the_objective_of_an_earlier_round(altered: Callable[..., Run]) -> None:
    run = altered(metrics={"objective": [0.5, math.inf, math.nan]}, summary={"figures": {"objective": math.inf}})
    assert [entry.objective for entry in index(run.path)] == [math.inf]
    (run.path / "summary.json").unlink()
    assert [entry.objective for entry in index(run.path)] == [math.inf]


def test_a_run_whose_start_is_unknown_is_listed_without_a_date(finished: Run, tmp_path: Path) -> None:
    copied(finished, "20261399-999999-tiny", tmp_path)
    listed = CliRunner().invoke(application(), ["runs", str(tmp_path)], env={"COLUMNS": "200"}).output
    assert "20261399-999999-tiny" in listed
    assert ":" not in listed  # no time of day


def test_the_newest_run_is_first_and_runs_of_sweeps_are_among_them(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "20260102-000000-x-sweep-0000").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "comparison.html").touch()
    for name in (
        "20260101-000000-x-0000",
        "20260103-000000-x-0000",
        "20260102-000000-x-sweep-0000/20260102-000001-x-1",
    ):
        copied(finished, name, tmp_path)
    assert [entry.id for entry in index(tmp_path)] == [
        "20260103-000000-x-0000",
        "20260102-000001-x-1",
        "20260101-000000-x-0000",
    ]


def test_of_runs_that_began_in_the_same_second_the_later_one_is_first(finished: Run, tmp_path: Path) -> None:
    names = [f"20260101-000000-x-{suffix}" for suffix in ("b", "c", "a")]
    for began, name in enumerate(names):
        os.utime(copied(finished, name, tmp_path) / "settings.yaml", (began, began))
    assert [entry.id for entry in index(tmp_path)] == names[::-1]


def test_runs_of_a_sweep_are_told_apart_at_80_columns(finished: Run, tmp_path: Path) -> None:
    sweep = tmp_path / "20260102-000000-x-sweep-0000"
    settings = [(seed, step_size) for seed in (1, 2) for step_size in (0.125, 0.25)]
    for number, (seed, step_size) in enumerate(settings):
        path = copied(finished, f"20260102-000000-fedavg-digits-000{number}", sweep)
        values = finished.settings_values
        values = {**values, "seed": seed, "algorithm": {**values["algorithm"], "step_size": step_size}}
        (path / "settings.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    copied(finished, "20260101-000000-x-0000", tmp_path)
    *entries, single = index(tmp_path)
    assert {(entry.seed, entry.grid["algorithm.step_size"]) for entry in entries} == set(settings)
    assert single.grid == {}
    assert {entry.path: entry.grid for entry in index(sweep)} == {entry.path: entry.grid for entry in entries}
    listed = CliRunner().invoke(application(), ["runs", str(tmp_path)], env={"COLUMNS": "80"}).output
    rows = [line.split()[1:3] for line in listed.splitlines() if "fedavg-digits" in line]
    assert sorted(rows) == sorted([f"step_size={step_size}", f"{seed}"] for seed, step_size in settings)
    assert "accuracy" in listed
    (sweep / "20260102-000000-fedavg-digits-0000" / "settings.yaml").write_text("[")
    assert sum(entry.grid != {} for entry in index(tmp_path)) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.yaml", None),
        ("settings.yaml", b"\xff\xfe"),
        ("settings.yaml", b"[1, 2]"),
        ("settings.yaml", b"rounds: 3\nalgorithm: {name: fedavg"),
        ("settings.yaml", b"rounds: 3\ndata:\n  name: digits\n"),
        ("settings.yaml", b"rounds: 3\nalgorithm: 1\ndata: 2\n"),
        ("settings.yaml", b"[" * 5000),
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"rounds": "many", "figures": {}}'),
        ("summary.json", b"[" * 100_000),
        ("metrics.parquet", b"no table"),
    ],
)
def test_a_damaged_folder_is_listed_with_the_reason(
    finished: Run, tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = copied(finished, "20260101-000000-x-0000", tmp_path)
    if name == "metrics.parquet":
        (path / "summary.json").unlink()
    (path / name).unlink() if content is None else (path / name).write_bytes(content)
    (entry,) = index(tmp_path)
    assert entry.state == "damaged"
    assert name in entry.reason
    done = CliRunner().invoke(application(), ["runs", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "damaged" in done.output
    assert name in done.output


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_narrow_terminal_gets_fewer_columns_and_none_that_is_cut_off(finished: Run, width: int) -> None:
    words = ["runs", str(finished.path.parent)]
    listed = CliRunner().invoke(application(), words, env={"COLUMNS": str(width)}).output
    lines = [line for line in listed.splitlines() if finished.id in line]
    assert len(lines) == 1
    assert "completed" in lines[0]
    assert "…" not in listed
    assert ("started" in listed) == (width == 120)


def test_settings_in_another_form_are_read_as_well(finished: Run, tmp_path: Path) -> None:
    path = copied(finished, "x", tmp_path)
    for file, data in (("/some/where/own.csv", "own.csv"), (path.absolute() / "data" / "all.npz", "from Python")):
        text = f"{{rounds: 3, clients: auto, algorithm: {{name: fedpdm}}, data: {{file: {file}}}}}"
        (path / "settings.yaml").write_text(text)
        (entry,) = index(tmp_path)
        assert (entry.algorithm, entry.data, entry.clients, entry.seed) == ("fedpdm", data, "auto", None)


@pytest.mark.parametrize(
    "folder",
    ["with a space/" * 12, "with: a colon's/" * 12, "Übergrößen und mehr/" * 12],
    ids=["plain", "quoted", "escaped"],
)
def test_a_data_file_with_a_long_path_is_named(finished: Run, tmp_path: Path, folder: str) -> None:
    path = copied(finished, "20260101-000000-long-0000", tmp_path)
    values = {**finished.settings_values, "data": {"name": None, "file": f"/{folder}the table.csv", "bias": 1.0}}
    (path / "settings.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (entry,) = index(tmp_path)
    assert (entry.state, entry.data, entry.planned) == ("completed", "the table.csv", 3)


def test_names_cannot_steer_the_terminal(altered: Callable[..., Run]) -> None:
    run = altered(settings=lambda text: text.replace("name: fedavg", 'name: "[red]\\e[2J"'))
    done = CliRunner().invoke(application(), ["runs", str(run.path.parent)], env={"COLUMNS": "200"})
    assert "\x1b" not in done.output
    assert "[red]" in done.output


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with raises(CheckpointError, source=tmp_path / "none"):
        index(tmp_path / "none")


def test_finished_runs_are_listed_without_heavy_libraries_and_tables_of_calls(finished: Run, tmp_path: Path) -> None:
    path = copied(finished, "x", tmp_path)
    for name in ("calls.parquet", "metrics.parquet"):
        (path / name).write_bytes(b"not read")
    program = (
        "import sys; from pathlib import Path; from fenchel.report.index import index\n"
        f"assert [each.state for each in index(Path({str(tmp_path)!r}))] == ['completed']\n"
        "assert not {'numpy', 'pyarrow', 'scipy', 'grpc', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
