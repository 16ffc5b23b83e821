"""Commands that conduct a run: words for a person when it ends early, and runs within one process."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

import fenchel
from fenchel.common.errors import CheckpointError, FenchelError, RunStoppedError, SettingsError, StorageError
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import KEY, open_to_others
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.cli.client import _identities
from fenchel.deploy.cli.conduct import conducted
from fenchel.deploy.cli.main import application
from fenchel.deploy.monitoring.exporters import MonitoringOptions
from fenchel.report.timeline import Timeline
from tests.messages import raises


def ended(folder: RunFolder, how: BaseException) -> None:
    with conducted(folder, validate(SETTINGS), MonitoringOptions(), Console()):
        raise how


@pytest.mark.parametrize("how", [KeyboardInterrupt(), asyncio.CancelledError(), RunStoppedError("too few")])
def test_a_run_with_a_checkpoint_says_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: BaseException
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.checkpoint.write_bytes(b"saved")
    folder.summary.write_text("{}")
    with pytest.raises(type(how)):
        ended(folder, how)
    assert f"go on with --resume {folder.path}" in capsys.readouterr().err
    assert folder.path.exists()


@pytest.mark.parametrize("how", [KeyboardInterrupt(), RunStoppedError("nobody came")])
def test_a_run_without_one_promises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: BaseException
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    with pytest.raises(type(how)):
        ended(folder, how)
    assert "--resume" not in capsys.readouterr().err
    assert folder.path.exists() != isinstance(how, FenchelError)


@pytest.mark.parametrize("how", [KeyboardInterrupt(), asyncio.CancelledError(), RunStoppedError("too few")])
@pytest.mark.parametrize("saved", [None, "checkpoint", "previous_checkpoint"])
def test_copies_of_data_are_kept_only_for_a_run_that_can_go_on(
    tmp_path: Path, saved: str | None, how: BaseException
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.summary.write_text("{}")
    folder.data.mkdir()
    (folder.data / "all.parquet").write_bytes(b"patients")
    if saved is not None:
        getattr(folder, saved).write_bytes(b"saved")
    with pytest.raises(type(how)):
        ended(folder, how)
    assert folder.summary.exists()
    assert folder.data.exists() == (saved is not None)


@pytest.mark.parametrize("saved", ["checkpoint", "previous_checkpoint"])
def test_a_full_disk_takes_no_folder_away_that_has_a_checkpoint(tmp_path: Path, saved: str) -> None:
    """On a full disk the summary is missing, and the checkpoint is all that there is."""
    folder = RunFolder.create(tmp_path, "run")
    checkpoint: Path = getattr(folder, saved)
    checkpoint.write_bytes(b"saved")
    with raises(StorageError):
        ended(folder, StorageError("no room"))
    assert checkpoint.exists()


def test_a_certificate_has_its_own_name_and_a_key_that_others_can_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_all(tmp_path, ["localhost"], ["north", "south"])
    for name in ("north", None):
        assert list(_identities(tmp_path / "north", None, None, 0, name)) == ["north"]
    with raises(SettingsError, key="--name south"):
        _identities(tmp_path / "north", None, None, 0, "south")
    assert capsys.readouterr().err == ""
    (tmp_path / "north" / KEY).chmod(0o640)
    _identities(tmp_path / "north", None, None, 0, None)
    assert "chmod 600 key.pem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "owner", "user", "is_open"),
    [
        (0o440, 0, 1000, False),  # as a container has it from Kubernetes
        (0o440, 0, 0, True),
        (0o440, 1000, 1000, True),
        (0o460, 0, 1000, True),
        (0o444, 0, 1000, True),
        (0o600, 1000, 1000, False),
    ],
)
def test_a_key_of_roots_may_be_given_to_a_user_by_its_group(mode: int, owner: int, user: int, is_open: bool) -> None:
    assert open_to_others(os.stat_result((mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0)), user) == is_open


SETTINGS = {
    "name": "small",
    "rounds": 3,
    "clients": 2,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
    "objective": {"kind": "softmax", "l2": 1e-3},
    "algorithm": {"name": "fedavg", "local_steps": 1, "step_size": 0.5},
}


def command(*words: str) -> Result:
    return CliRunner().invoke(application(), ["up", *words])


def test_a_command_does_a_run_in_its_own_process_with_the_same_model(tmp_path: Path) -> None:
    (file := tmp_path / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    done = command(str(file), "--in-process", "--runs", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    run = fenchel.Run(json.loads(done.stdout.splitlines()[-1])["folder"])
    assert run.completed
    assert run.model.tobytes() == fenchel.up(SETTINGS, in_process=True, runs=tmp_path).model.tobytes()
    again = command("--resume", str(run.path), "--in-process", "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, json.loads(done.stdout.splitlines()[-1]))
    assert "nothing is left to do" in again.stderr
    with raises(CheckpointError):  # it had no network whose time could be exchanged
        Timeline.of(run)
    assert command(str(file), "--in-process", "--dry-run").stdout == "2 clients in this process\n"
    swept = command(str(file), "--in-process", "--seeds", "1,2", "--runs", str(tmp_path / "sweeps"), "--quiet")
    (sweep,) = (tmp_path / "sweeps").iterdir()
    assert swept.stdout.split() == [str(sweep)]
    assert len([path for path in sweep.iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--processes", "2"], "--processes"),
        (["--on", "docker"], "--on"),
        (["--insecure"], "--insecure"),
        (["--set", "links.default=lte"], "links"),
        (["--set", "data={name: own, classes: [0, 1]}"], "data.name"),
    ],
)
def test_what_is_about_processes_is_refused_in_one(words: list[str], key: str, tmp_path: Path) -> None:
    (file := tmp_path / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    refused = command(str(file), "--in-process", "--runs", str(tmp_path / "runs"), *words).exception
    assert isinstance(refused, SettingsError)
    assert refused.key == key
    assert not (tmp_path / "runs").exists()
