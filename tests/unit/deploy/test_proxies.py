"""What is said of a process that ended before its time."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenchel.common.settings.link import Link
from fenchel.deploy.netem.proxies import how_it_ended, relaying


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('no more'); raise SystemExit(3)", "ended with code 3: no more"),
        ("raise SystemExit(3)", "ended with code 3: no output in its log, perhaps because the disk is full"),
        (
            f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})",
            "was killed by signal 9 (Killed), perhaps because memory ran out: no output in its log",
        ),
        (
            f"import os; print('so long', flush=True); os.kill(os.getpid(), {signal.SIGTERM:d})",
            "was killed by signal 15 (Terminated): so long",
        ),
    ],
)
def test_a_code_and_a_signal_are_told_apart(program: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        output.write(b"of an earlier process\n")
        output.flush()
        begin = output.tell()
        code = subprocess.run([sys.executable, "-c", program], stdout=output, check=False).returncode
    assert how_it_ended(code, log, begin) == said


def test_the_traffic_of_a_resumed_run_is_added(tmp_path: Path) -> None:
    async def connect() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        files = {"log": tmp_path / "log", "passed": tmp_path / "links.json"}
        async with relaying({name: Link() for name in "ab"}, address, listen="127.0.0.1", seed=1, **files) as relays:
            for port in relays.ports.values():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read() == b""
                writer.close()
        server.close()

    for _ in range(2):
        asyncio.run(connect())
    found = json.loads((tmp_path / "links.json").read_text())
    assert {name: each["passed"]["connections"] for name, each in found.items()} == {"a": 2, "b": 2}
