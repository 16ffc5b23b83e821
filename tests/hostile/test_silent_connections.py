"""A stranger opens more connections than the server may have files, and says nothing: the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenchel.common.errors import SettingsError
from fenchel.fleet.metering import open_files
from tests.cluster.federation import Federation, wait_until
from tests.hostile.test_memory import SMALL, Siege
from tests.hostile.test_siege import HONEST

pytestmark = pytest.mark.cluster

FILES = 1024
SILENT = 1100
ROUNDS = 5


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have a file for each connection."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2 * SILENT:
        pytest.skip(f"a process of this machine may have {limits[1]} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def limited(soft: int, hard: int) -> tuple[str, ...]:
    """Return words before a command that limit the files that it may have open."""
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    return sys.executable, "-c", code + "os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    settings = {
        "name": "silent",
        "rounds": ROUNDS,
        "clients": 2,
        "data": {"name": "own"},
        "objective": {"kind": "logistic", "l2": 1e-3},
        "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None},
        "participation": {"deadline": 300.0},
        "evaluation": {"server": False, "clients": False},
    }
    made = Federation(tmp_path, settings, within=limited(FILES, FILES))
    yield made
    made.end()


def files_of(process: int) -> int:
    """Return how many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


@pytest.mark.slow
async def test_a_run_goes_on_while_a_stranger_holds_more_connections_than_the_server_may_have_files(
    federation: Federation, many_files: None
) -> None:
    federation.start_server()
    wait_until(lambda: "listening" in federation.says("server"), "the server")
    assert federation.server is not None
    process = federation.server.pid
    siege = Siege(federation, SMALL, process)
    playing = [asyncio.create_task(siege.honest(name, 1.0)) for name in HONEST]
    try:
        async with asyncio.timeout(120):
            while not siege.asked:
                await asyncio.sleep(0.02)
            with contextlib.ExitStack() as stack:
                for _ in range(SILENT):
                    stack.enter_context(socket.create_connection(("127.0.0.1", federation.port)))
                while files_of(process) < FILES - open_files.RESERVED - 1:
                    await asyncio.sleep(0.02)
                siege.answering.set()
                assert await asyncio.to_thread(federation.server.wait) == 0, federation.says("server")
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    assert siege.asked == ROUNDS
    assert "too many files" not in federation.says("server")


def test_a_server_raises_its_limit_as_far_as_it_may(federation: Federation) -> None:
    federation.within = limited(open_files.RESERVED, FILES)
    federation.start_server()
    wait_until(lambda: "listening" in federation.says("server"), "the server")
    assert federation.server is not None
    assert resource.prlimit(federation.server.pid, resource.RLIMIT_NOFILE) == (FILES, FILES)


@pytest.mark.slow
def test_a_server_with_too_few_files_for_its_clients_does_not_start(federation: Federation) -> None:
    federation.within = limited(open_files.RESERVED, open_files.RESERVED)
    federation.start_server()
    assert federation.server is not None
    assert federation.server.wait(120) == SettingsError.exit_code
    assert "clients: 2 clients need as many connections, but the server can hold 0" in federation.says("server")
