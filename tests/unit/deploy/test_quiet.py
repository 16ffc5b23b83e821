"""``--quiet`` leaves the path of the run folder alone; ``--log-level`` changes the terminal, not the log file."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner, Result

from fenchel.deploy.cli.main import application
from fenchel.deploy.cli.up import _wait_for
from fenchel.deploy.launch.launchers.slurm_job import SlurmJob
from fenchel.deploy.launch.logs import log_to_terminal

pytestmark = pytest.mark.usefixtures("terminal_log")

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "clients": 2,
    "data": {"name": "breast_cancer", "scale": "unit-interval"},
    "objective": {"kind": "logistic", "l2": 0.01},
    "algorithm": {"name": "fedavg"},
}


def up(folder: Path, *words: str) -> Result:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(SETTINGS))
    return CliRunner().invoke(application(), ["up", str(path), "--runs", str(folder / "runs"), "--processes=1", *words])


def levels(run: Path) -> set[str]:
    """Return the levels of the records in a run's log."""
    return {json.loads(line)["level"] for line in (run / "log.jsonl").read_text().splitlines()}


@pytest.mark.cluster
def test_a_quiet_run_prints_its_folder_alone(tmp_path: Path) -> None:
    done = up(tmp_path, "--quiet", "--log-level", "error")
    assert done.exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert done.stdout == f"{run}\n"
    assert done.stderr == ""
    assert (run / "report.html").exists()
    assert "info" in levels(run)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_quiet_run_in_json_prints_the_object_alone(tmp_path: Path) -> None:
    done = up(tmp_path, "-q", "--json")
    assert json.loads(done.stdout)["completed"]
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_quiet_sweep_prints_its_folder_alone(tmp_path: Path) -> None:
    done = up(tmp_path, "--quiet", "--seeds", "1,2")
    (folder,) = (tmp_path / "runs").iterdir()
    assert done.stdout == f"{folder}\n"
    assert done.stderr == ""
    assert (folder / "comparison.html").exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_more_of_the_log_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    done = up(tmp_path, "--quiet", "--log-level", "INFO")
    (run,) = (tmp_path / "runs").iterdir()
    lines = (run / "log.jsonl").read_text().splitlines()
    assert done.stdout == f"{run}\n"
    for line in lines:
        assert f"INFO {json.loads(line)['message']}" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
def test_a_quiet_server_and_quiet_clients_print_the_folder_alone(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(SETTINGS))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"

    def started(*words: str) -> subprocess.Popen[str]:
        words = (sys.executable, "-m", "fenchel", *words, "--insecure", "--quiet", "--log-level", "error")
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)

    server = started("server", "settings.yaml", "--listen", address)
    clients = started("client", address, "--sessions", "2")
    said = [process.communicate(timeout=120) for process in (server, clients)]
    (run,) = (tmp_path / "runs").iterdir()
    assert said == [(f"runs/{run.name}\n", ""), ("", "")]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_quiet_job_logs_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    run = tmp_path / "a-run"
    run.mkdir()
    (run / "summary.json").write_text('{"completed": true}')

    class Job:
        async def run(self, say: Callable[[str], None]) -> tuple[int, Path]:
            say("submitted job 7")
            return 0, tmp_path

    _wait_for(cast(SlurmJob, Job()), None, as_json, quiet=True)
    printed = capsys.readouterr()
    expected = json.dumps({"completed": True, "folder": str(run)}) if as_json else str(run)
    assert (printed.out, printed.err) == (f"{expected}\n", "submitted job 7\n")


def test_an_error_is_an_error_with_quiet(tmp_path: Path) -> None:
    done = up(tmp_path, "--quiet", "--set", "rounds=0")
    assert done.exit_code != 0
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["up", "server", "client"])
def test_a_level_that_does_not_exist_is_refused(command: str) -> None:
    assert CliRunner().invoke(application(), [command, "x", "--log-level", "loud"]).exit_code == 2


@pytest.mark.parametrize(("level", "shown"), [("debug", "DIWE"), ("info", "IWE"), ("warning", "WE"), ("error", "E")])
def test_a_level_shows_records_from_there_on(level: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_terminal(logging.getLevelNamesMapping()[level.upper()])
    log = logging.getLogger("fenchel.tests")
    for write in (log.debug, log.info, log.warning, log.error):
        write("a record")
    assert "".join(line[0] for line in capsys.readouterr().err.splitlines()) == shown
