"""Data that are given beside the settings reach client processes: from Python, and as a file for each client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fenchel
from fenchel.common.errors import SettingsError
from tests.messages import raises

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = np.where(X.sum(axis=1) > 0, "well", "ill")
SETTINGS: dict[str, Any] = {
    "name": "given",
    "rounds": 3,
    "clients": 3,
    "data": {"holdout": 0.2},
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "fedavg", "step_size": 0.5, "local_epochs": 1, "batch_size": 8},
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A folder with a file of each of three hospitals, of different sizes, whose label is not the last column."""
    (folder := tmp_path / "hospitals").mkdir()
    for name, rows in (("b", slice(0, 15)), ("a", slice(15, 35)), ("c", slice(35, 60))):
        lines = [f"{label},{','.join(map(repr, row))}" for row, label in zip(X[rows].tolist(), Y[rows], strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["outcome,u,v,w,x", *lines]) + "\n")
    return folder


@pytest.mark.slow
def test_processes_learn_from_data_of_python_what_one_process_learns(tmp_path: Path) -> None:
    for data in ((X, Y), [(X[:15], Y[:15]), (X[15:35], Y[15:35]), (X[35:], Y[35:])]):
        across = fenchel.up(SETTINGS, data=data, processes=2, runs=tmp_path)
        inside = fenchel.up(SETTINGS, data=data, in_process=True, runs=tmp_path)
        assert across.model.tobytes() == inside.model.tobytes()
        assert {path.stat().st_mode & 0o777 for path in (across.path / "data").iterdir()} == {0o600}
        assert (across.path / "clients").stat().st_mode & 0o777 == 0o700


def test_a_command_starts_a_client_for_each_file(hospitals: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(SETTINGS | {"clients": 8, "data": {"name": "digits", "holdout": 0.2}}))
    words = ["up", str(file), "--data", str(hospitals / "*.csv"), "--label", "outcome", "--processes", "2", "--json"]
    summary = command(*words, folder=tmp_path)
    run = fenchel.Run(tmp_path / summary["folder"])
    assert [shard.samples for _, shard in sorted(run.shards.items())] == [16, 12, 20]  # a fifth is held out
    files = [hospitals / f"{name}.csv" for name in "abc"]
    same = fenchel.up(SETTINGS, data=files, label="outcome", in_process=True, runs=tmp_path)
    assert run.model.tobytes() == same.model.tobytes()


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_files(hospitals: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(SETTINGS | {"rounds": 300}))
    given = ["--data", str(hospitals / "*.csv"), "--label", "outcome", "--processes", "1", "--json"]
    words = [sys.executable, "-m", "fenchel", "up", str(file), *given]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while not list(tmp_path.glob("runs/*/checkpoint/previous")):
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        running.kill()
    (folder,) = tmp_path.glob("runs/*")
    assert not fenchel.Run(folder).completed
    assert "give one for each" in " ".join(started("up", "--resume", str(folder), folder=tmp_path).stderr.split())
    resumed = fenchel.Run(tmp_path / command("up", "--resume", str(folder), *given, folder=tmp_path)["folder"])
    files = [hospitals / f"{name}.csv" for name in "abc"]
    whole = fenchel.up(
        SETTINGS | {"rounds": 300}, data=files, label="outcome", in_process=True, runs=tmp_path / "whole"
    )
    assert resumed.model.tobytes() == whole.model.tobytes()


@pytest.mark.slow
def test_a_command_refuses_files_that_do_not_fit(hospitals: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"data": {"name": "own"}}
    with raises(SettingsError, key="data.name"):
        fenchel.up(settings, runs=tmp_path)
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    for words, wanted in (
        (["--data", str(hospitals / "*.parquet")], "the file does not exist"),
        (["--data", str(hospitals / "*.csv"), "--clients", "2"], "3 files given for 2 clients"),
        (["--label", "outcome"], "names columns of --data"),
    ):
        ended = started("up", str(file), *words, folder=tmp_path)
        assert ended.returncode == SettingsError.exit_code
        assert wanted in " ".join(ended.stderr.split())
    assert not (tmp_path / "runs").exists()


def command(*words: str, folder: Path) -> Any:
    """Return what a command prints in JSON."""
    ended = started(*words, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def started(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended."""
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "fenchel", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
