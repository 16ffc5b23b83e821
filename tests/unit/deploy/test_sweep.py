"""A sweep does all combinations, reports those that fail at its end, and leaves out what is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import fenchel
from fenchel.common.errors import RunStoppedError, SettingsError, StorageError
from fenchel.common.settings.run import RunSettings
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.sweep import completed_runs, do_sweep, parse_grid, parse_seeds, sweep_points
from tests.messages import raises

BASE: Mapping[str, Any] = {
    "name": "small",
    "seed": 7,
    "rounds": 2,
    "clients": 2,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
    "objective": {"kind": "softmax", "l2": 1e-3},
    "algorithm": {"name": "fedavg", "local_steps": 1, "step_size": 0.5},
}
STEP = "algorithm.step_size"


@pytest.mark.parametrize(
    ("text", "seeds"), [("1..5", [1, 2, 3, 4, 5]), ("1,4,7", [1, 4, 7]), ("3", [3]), ("0..1, 8", [0, 1, 8])]
)
def test_seeds_are_ranges_and_lists(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "5..1", "1..", "a", "-1", "1;2", "1..1000000000000"])
def test_what_is_no_seed_is_refused(text: str) -> None:
    with raises(SettingsError, key="--seeds"):
        parse_seeds(text)


def test_a_grid_has_values_in_yaml() -> None:
    assert parse_grid(["a.b=0.1,null,x", "c=[1, 2],[3]"]) == {"a.b": [0.1, None, "x"], "c": [[1, 2], [3]]}


@pytest.mark.parametrize("words", [["a"], ["a="], ["=1"], ["a=]"], ["a={"]])
def test_what_is_no_grid_is_refused(words: list[str]) -> None:
    with raises(SettingsError, key=f"--grid {words[0]}"):
        parse_grid(words)


def test_a_sweep_is_the_product_with_all_seeds_of_a_combination_together() -> None:
    points = sweep_points(BASE, "x", [1, 2], {STEP: [0.1, 0.3], "rounds": [1, 2]})
    assert [point.label for point in points[:3]] == [
        "step_size=0.1 rounds=1 seed=1",
        "step_size=0.1 rounds=1 seed=2",
        "step_size=0.1 rounds=2 seed=1",
    ]
    assert len(points) == 8
    assert points[-1].settings is not None
    assert (points[-1].settings.seed, points[-1].settings.rounds) == (2, 2)
    assert BASE["seed"] == 7


@pytest.mark.parametrize(
    ("seeds", "grid", "key"),
    [
        ([1, 1], {}, "seed"),
        ([], {STEP: [0.1, 0.1]}, STEP),
        ([], {STEP: [0.1, "1e-1"]}, STEP),
        ([1], {"seed": [2]}, "seed"),
        (range(10_000), {STEP: [0.1, 0.2]}, f"{STEP}, seed"),
    ],
)
def test_a_sweep_with_the_same_run_twice_or_too_many_is_refused(
    seeds: list[int], grid: dict[str, list[Any]], key: str
) -> None:
    with raises(SettingsError, key=key):
        sweep_points(BASE, "x", seeds, grid)


@pytest.mark.parametrize("grid", [{"algorithm.stepsize": [1]}, {STEP: [0.1, "fast"]}, {STEP: [0.5, -1]}])
def test_wrong_settings_of_any_run_are_refused_before_anything_starts(tmp_path: Path, grid: dict[str, Any]) -> None:
    (key,) = grid
    with raises(SettingsError, key=key):
        fenchel.sweep(dict(BASE), seeds=[1, 2], grid=grid, runs=tmp_path, in_process=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"seeds": 2}, {"grid": {"algorithm.step_size": 0.1}}, {"grid": {"name": "a"}}])
def test_a_value_where_a_list_is_needed_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with raises(SettingsError):
        fenchel.sweep(dict(BASE), runs=tmp_path, in_process=True, **given)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow
def test_diverging_combinations_do_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = fenchel.sweep(dict(BASE), seeds=[1, 2], grid={STEP: [1e300, 0.5]}, runs=tmp_path, in_process=True)
    assert [run.state for run in runs] == ["stopped", "stopped", "completed", "completed"]
    assert [run.settings.seed for run in runs] == [1, 2, 1, 2]
    (folder,) = tmp_path.iterdir()
    assert {run.path.parent for run in runs} == {folder}
    assert len([record for record in caplog.records if record.name == "fenchel.deploy.launch.sweep"]) == 2


def test_completed_runs_with_equal_settings_are_skipped(tmp_path: Path) -> None:
    (earlier,) = fenchel.sweep(dict(BASE), seeds=[1], runs=tmp_path, in_process=True)
    done: list[int] = []
    points = sweep_points(BASE, "x", [1, 2], {})
    folder = tmp_path / "again"
    folder.mkdir()
    results = list(do_sweep(points, folder, lambda number, settings: done.append(number), completed_runs(tmp_path)))
    assert done == [1]
    assert [result.skipped for result in results] == [True, False]
    assert results[0].path == earlier.path
    assert not folder.exists(), "nothing was done in it"
    (earlier.path / "summary.json").write_text(json.dumps({"completed": False}))
    assert completed_runs(tmp_path) == {}
    (earlier.path / "summary.json").write_text("damaged")
    assert completed_runs(tmp_path) == {}


def test_completed_runs_of_a_file_with_a_relative_path_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("x,label\n" + "0.5,yes\n-0.5,no\n" * 20)
    base = {**BASE, "data": {"file": "data.csv"}}
    (earlier,) = fenchel.sweep(base, seeds=[1], runs=tmp_path / "runs", in_process=True)
    (again := tmp_path / "again").mkdir()
    done = completed_runs(tmp_path / "runs")
    (result,) = do_sweep(sweep_points(base, "x", [1], {}), again, lambda number, settings: None, done)
    assert result.skipped
    assert result.path == earlier.path


@pytest.mark.parametrize("how", [StorageError("full"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interruption_end_the_sweep(tmp_path: Path, how: BaseException) -> None:
    def do(number: int, settings: RunSettings) -> None:
        if number:
            raise how
        (tmp_path / "kept").mkdir()

    results = do_sweep(sweep_points(BASE, "x", [1, 2, 3], {}), tmp_path, do, {})
    assert next(results).path == tmp_path / "kept"
    with pytest.raises(type(how)):
        next(results)
    assert (tmp_path / "kept").exists()


def command(folder: Path, *words: str) -> Any:
    (folder / "small.yaml").write_text(yaml.safe_dump(dict(BASE)))
    return CliRunner().invoke(application(), ["up", str(folder / "small.yaml"), "--runs", str(folder / "runs"), *words])


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow
def test_the_command_does_the_sweep_compares_it_and_goes_on(tmp_path: Path) -> None:
    first = command(tmp_path, "--seeds", "1,2", "--grid", f"{STEP}=0.5,1.0e+300")
    assert isinstance(first.exception, RunStoppedError)
    assert "1/4  step_size=0.5 seed=1  completed" in first.output
    assert "3/4  step_size=1e+300 seed=1  stopped" in first.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert len([path for path in folder.iterdir() if (path / "report.html").exists()]) == 2
    assert (folder / "comparison.html").exists()
    again = command(tmp_path, "--seeds", "1..3", "--skip-done", "--json")
    assert again.exit_code == 0, again.output
    values = json.loads(again.stdout.splitlines()[-1])
    assert [run["settings"]["seed"] for run in values["runs"]] == [1, 2, 3]
    assert values["groups"][0]["figures"]["objective"]["seeds"] == 3
    assert values["failed"] == []
    assert len([path for path in Path(values["folder"]).iterdir() if path.is_dir()]) == 1


def test_a_dry_run_prints_a_line_for_each_run(tmp_path: Path) -> None:
    done = command(tmp_path, "--seeds", "1,2", "--grid", f"{STEP}=0.5", "--dry-run")
    assert done.stdout.splitlines() == ["step_size=0.5 seed=1", "step_size=0.5 seed=2"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_the_command_refuses_a_wrong_value_before_the_first_run(tmp_path: Path, words: list[str]) -> None:
    done = command(tmp_path, "--grid", f"{STEP}=0.5,fast", "--in-process", *words)
    assert isinstance(done.exception, SettingsError)
    assert done.exception.key == STEP
    assert "step_size=0.5" not in done.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--skip-done"], "--skip-done"),
        (["--seeds", "1", "--resume", "x"], "--resume"),
        (["--seeds", "1", "--clients", "auto"], "clients"),
        (["--seeds", "1", "--skip-done", "--data", "small.yaml"], "--skip-done"),
    ],
)
def test_options_that_contradict_a_sweep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(tmp_path, *words)
    assert isinstance(done.exception, SettingsError)
    assert done.exception.key == key
