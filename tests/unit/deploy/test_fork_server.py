"""Processes that are forked from one that has imported Fenchel are as if started anew."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fenchel.common.errors import RunStoppedError
from fenchel.deploy.launch.fork_server import LENGTH, Forked, ForkServer
from tests.messages import raises

NOBODY = ["client", "localhost:1", "--insecure", "--name", "a"]
"""Of a client that dials in vain."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as found:
        yield found


def forked(server: ForkServer, log: Path, *words: str, environment: dict[str, str] | None = None) -> Forked:
    with log.open("ab") as output:
        return server.start(words, output, environment)


def test_each_runs_its_own_words_and_says_them_in_its_own_log(server: ForkServer, tmp_path: Path) -> None:
    right = forked(server, tmp_path / "right", "algorithms")
    wrong = forked(server, tmp_path / "wrong", "nonsense")
    assert (right.wait(30), wrong.wait(30)) == (0, 2)
    assert "fedavg" in (tmp_path / "right").read_text()
    assert "Usage: fenchel" in (tmp_path / "wrong").read_text()


def test_it_forks_while_it_has_one_thread(server: ForkServer, tmp_path: Path) -> None:
    # A child has only the thread that forks, and what another thread holds locked stays locked.
    assert forked(server, tmp_path / "log", "nonsense").wait(30) == 2
    assert psutil.Process(server.pid).num_threads() == 1


def test_one_that_is_killed_is_told_from_one_that_ended(server: ForkServer, tmp_path: Path) -> None:
    process = forked(server, tmp_path / "log", *NOBODY, "--state", str(tmp_path))
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL == process.poll()
    process.kill()  # nobody, now


async def test_the_end_is_awaited_beside_other_work(server: ForkServer, tmp_path: Path) -> None:
    processes = [forked(server, tmp_path / str(i), *NOBODY, "--state", str(tmp_path / str(i))) for i in range(3)]
    waiting = [asyncio.create_task(process.ended()) for process in processes]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    for process in processes:
        process.terminate()
    assert -signal.SIGKILL not in await asyncio.gather(*waiting)


def test_it_has_the_environment_and_the_folder_of_who_asks(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("nonsense")
    assert forked(server, tmp_path / "log", "check", "own.yaml", environment={"COLUMNS": "40"}).wait(30) == 2
    assert "own.yaml: the file has a single value; expected a mapping" in " ".join(
        (tmp_path / "log").read_text().split()
    )


@pytest.mark.slow
def test_it_ends_with_who_asks_and_what_it_forked_goes_on(tmp_path: Path) -> None:
    with ForkServer() as server:
        process = forked(server, tmp_path / "log", *NOBODY, "--state", str(tmp_path))
        mother = psutil.Process(server.pid)
    assert not mother.is_running()
    child = psutil.Process(process.pid)
    assert child.is_running()
    child.kill()
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.slow
def test_a_fork_server_that_is_gone_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    with ForkServer() as server:
        forked(server, tmp_path / "log", "algorithms").wait(30)
        psutil.Process(server.pid).kill()
        with raises(RunStoppedError):
            forked(server, tmp_path / "log", "algorithms")


def test_a_process_is_waited_for_also_by_a_descriptor_that_select_does_not_know() -> None:
    """A server that holds many clients has such descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 1100:
        pytest.skip(f"a process of this machine may have {limits[1]} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    reading, writing = os.pipe()
    try:
        process = Forked(os.getpid(), fcntl.fcntl(reading, fcntl.F_DUPFD, 1050))
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        os.write(writing, (7).to_bytes(LENGTH, signed=True))
        assert process.wait() == 7
    finally:
        os.close(reading)
        os.close(writing)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
