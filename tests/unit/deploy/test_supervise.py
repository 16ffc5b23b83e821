"""A supervised process gets through however often it is killed, and stops when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fenchel.common.errors import INTERRUPTED, StorageError, TooManyFilesError
from fenchel.deploy.cli.supervise import ServerSupervisor, main

# Stands for "fenchel server": notes its words, and does what the test's script says next.
SERVER = """
import json, os, pathlib, signal, sys, time
home = pathlib.Path(__file__).parent
words = sys.argv[1:]
(home / "calls").open("a").write(json.dumps(words) + "\\n")
script = json.loads((home / "script").read_text())
(home / "script").write_text(json.dumps(script[1:]))
if "--resume" in words:
    run = pathlib.Path(words[words.index("--resume") + 1])
else:
    run = pathlib.Path(words[words.index("--runs") + 1]) / "run-1"
    (run / "checkpoint").mkdir(parents=True)
for act in script[0]:
    if act == "checkpoint":
        (run / "checkpoint" / "latest").touch()
    elif act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "sleep":
        time.sleep(60)
    else:
        sys.exit(act)
"""


@pytest.fixture(autouse=True)
def signal_handler() -> Iterator[None]:
    """Give this process its own handler of SIGTERM back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


def supervisor(fake: Path, *script: Sequence[str | int]) -> ServerSupervisor:
    (fake / "script").write_text(json.dumps(script))
    command = (sys.executable, str(fake / "server.py"))
    return ServerSupervisor(fake / "runs", ["--listen", ":1"], ["settings.yaml", "--clients", "3"], command)


def calls(fake: Path) -> list[list[str]]:
    return [json.loads(line) for line in (fake / "calls").read_text().splitlines()]


def mine(fake: Path) -> Path:
    return fake / "runs" / f"running-{os.uname().nodename}"


def test_a_run_that_nothing_disturbs_ends_up_in_the_folder_for_runs(fake: Path) -> None:
    assert supervisor(fake, ["checkpoint", 0]).run() == 0
    beginning = ["settings.yaml", "--clients", "3", "--runs", str(mine(fake)), "--listen", ":1"]
    assert calls(fake) == [beginning]
    assert [path.name for path in (fake / "runs").iterdir()] == ["run-1"]


@pytest.mark.parametrize("end", ["kill", TooManyFilesError.exit_code])
def test_a_server_that_is_killed_or_ran_out_of_files_goes_on_with_its_run_under_the_settings_that_it_has(
    fake: Path, end: str | int
) -> None:
    assert supervisor(fake, ["checkpoint", end], [end], [0]).run() == 0
    resumed = ["--resume", str(mine(fake) / "run-1"), "--listen", ":1"]
    assert calls(fake)[1:] == [resumed, resumed]
    assert (fake / "runs" / "run-1" / "checkpoint" / "latest").exists()


def test_a_server_that_was_killed_before_its_first_checkpoint_begins_anew(fake: Path) -> None:
    (fake / "server.py").write_text(SERVER.replace("parents=True", "parents=True, exist_ok=True"))
    assert supervisor(fake, ["kill"], ["checkpoint", 0]).run() == 0
    first, second = calls(fake)
    assert first == second


def test_a_supervisor_that_is_started_again_finds_the_run_that_it_was_killed_in(fake: Path) -> None:
    run = mine(fake) / "run-0"
    (run / "checkpoint").mkdir(parents=True)
    (run / "checkpoint" / "latest").touch()
    assert supervisor(fake, [0]).run() == 0
    assert calls(fake) == [["--resume", str(run), "--listen", ":1"]]
    assert (fake / "runs" / "run-0").is_dir()


@pytest.mark.parametrize("code", [1, 7, 12])
def test_a_server_that_gives_up_is_not_started_again_and_its_code_is_passed_on(fake: Path, code: int) -> None:
    assert supervisor(fake, ["checkpoint", code]).run() == code
    assert len(calls(fake)) == 1
    assert (fake / "runs" / "run-1").is_dir()


@pytest.mark.parametrize(("end", "code"), [("kill", 137), (TooManyFilesError.exit_code,) * 2])
def test_a_server_that_ends_so_again_and_again_is_given_up_but_its_run_is_kept(
    fake: Path, end: str | int, code: int
) -> None:
    assert supervisor(fake, ["checkpoint", end], *([end] for _ in range(20))).run() == code
    assert len(calls(fake)) == 11
    assert (mine(fake) / "run-1" / "checkpoint" / "latest").exists()


def test_a_stopped_supervisor_stops_its_server_and_starts_no_other(fake: Path) -> None:
    (fake / "script").write_text(json.dumps([["checkpoint", "sleep"], [0]]))
    code = (
        "import signal, sys, pathlib; from fenchel.deploy.cli.supervise import ServerSupervisor; "
        "signal.signal(signal.SIGTERM, signal.default_int_handler); "
        f"sys.exit(ServerSupervisor(pathlib.Path({str(fake / 'runs')!r}), [], ['s'], "
        f"(sys.executable, {str(fake / 'server.py')!r})).run())"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        deadline = time.monotonic() + 30
        while not list(mine(fake).glob("*/checkpoint/latest")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == INTERRUPTED
    assert len(calls(fake)) == 1


def test_a_folder_for_runs_that_cannot_be_written_is_named_by_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.write_text("")
    settings = Path(__file__).parents[3] / "fenchel" / "experiments" / "fedavg-digits.yaml"
    assert main(["server", str(runs), "--insecure", "--", str(settings)]) == StorageError.exit_code
    assert str(runs) in capfd.readouterr().err


def test_a_killed_client_is_started_again_with_its_words_and_its_last_code_is_passed_on(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "runs").mkdir()
    (fake / "script").write_text(json.dumps([["kill"], ["kill"], [6]]))
    (fake / "server.py").write_text(SERVER.replace("parents=True", "parents=True, exist_ok=True"))
    monkeypatch.setattr("fenchel.deploy.cli.supervise._FENCHEL", (sys.executable, str(fake / "server.py")))
    assert main(["client", "server:7443", "--runs", str(fake / "runs")]) == 6
    assert calls(fake) == [["client", "server:7443", "--runs", str(fake / "runs")]] * 3


def test_options_after_the_settings_that_are_none_of_the_run_apply_to_every_start(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "script").write_text(json.dumps([["checkpoint", "kill"], [0]]))
    command = (sys.executable, str(fake / "server.py"))
    monkeypatch.setattr(ServerSupervisor.__init__, "__defaults__", (command,))
    options = ["--listen", "localhost:1", "--set", "rounds=2", "--metrics=localhost:2", "--clients", "3"]
    assert main(["server", str(fake / "runs"), "--insecure", "--", "settings.yaml", *options]) == 0
    begun, resumed = calls(fake)
    always = ["--insecure", "--listen", "localhost:1", "--metrics=localhost:2"]
    assert begun[:5] == ["settings.yaml", "--set", "rounds=2", "--clients", "3"]
    assert begun[-4:] == resumed[-4:] == always
    assert "rounds=2" not in resumed


@pytest.mark.parametrize("words", [[], ["runs"], ["server", "runs"], ["server", "--", "settings.yaml"]])
def test_words_that_make_no_sense_are_answered_with_how_it_is_called(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "fenchel.deploy.cli.supervise server DIR" in capsys.readouterr().err
