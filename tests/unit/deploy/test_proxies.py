"""What is said of a process that ended before its time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenchel.deploy.netem.proxies import how_it_ended


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('no more'); raise SystemExit(3)", "ended with code 3: no more"),
        ("raise SystemExit(3)", "ended with code 3: it said nothing, as where the disk is full"),
        (
            f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})",
            "was killed by signal 9 (Killed), as where the memory is used up: it said nothing",
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
        code = subprocess.run([sys.executable, "-c", program], stdout=output, check=False).returncode
    assert how_it_ended(code, log) == said
