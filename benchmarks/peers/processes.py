"""The processes of one federation: started, waited for, and ended, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers.job import JobError, is_written

ROOT = Path(__file__).parents[2]
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_POLL_SECONDS = 0.2  # seldom: asking must not slow the rounds down


@contextlib.contextmanager
def importable() -> Iterator[dict[str, str]]:
    """Yield environment variables with which another interpreter can import ``benchmarks``, and nothing else of here.

    Fenchel's packages have plain names (``proto``, ``common``), which must not hide those of other systems.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks", target_is_directory=True)
        yield {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": folder}


class Processes:
    """Processes that are started one after the other and end together.

    folder: of this federation: the logs, and the server's result.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = MappingProxyType(dict(os.environ))) -> None:
        self._folder = folder
        self._environment = environment
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        for wish in (signal.SIGTERM, signal.SIGKILL):
            for _, process in self._started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, wish)  # each has a group of its own, with its children
            deadline = time.monotonic() + 5
            for _, process in self._started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a process in the federation's folder."""
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        self._started.append((name, process))

    def wait_for_result(self, seconds: float) -> None:
        """Return once the server has written its result."""
        self._wait(lambda: is_written(self._folder), "no result", seconds)

    def wait_for_port(self, port: int, seconds: float = 60.0) -> None:
        """Return once somebody listens on a port of this machine."""
        self._wait(lambda: _listens(port), f"nobody listens on port {port}", seconds)

    def _wait(self, reached: Callable[[], bool], otherwise: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            for name, process in self._started:
                if process.poll():
                    raise JobError(f"{name} ended with code {process.returncode}:\n{self._last_words(name)}")
            if time.monotonic() > deadline:
                words = "\n".join(f"{name}:\n{self._last_words(name)}" for name, _ in self._started)
                raise JobError(f"{otherwise} after {seconds:.0f} s\n{words}")
            time.sleep(_POLL_SECONDS)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")[-1500:]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
