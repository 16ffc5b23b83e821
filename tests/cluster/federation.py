"""Real server and client processes over TLS, which a test can kill and start again."""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fenchel.common.settings.registry import builtin_settings, half
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Value
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.fork_server import Forked, ForkServer
from fenchel.deploy.launch.names import client_names
from fenchel.server import checkpoint as checkpoints

PATIENCE = 120.0

Process = subprocess.Popen[bytes] | Forked

MODULES = (
    *(half(name, side).__module__ for name in builtin_settings() for side in ("server", "client")),
    "fenchel.deploy.cli.server",
    "fenchel.deploy.cli.up",
    "fenchel.deploy.launch.deployment",
    "fenchel.deploy.monitoring.exporters",
    "fenchel.server.transport.service",
    "pandas",
    "scipy.optimize",
)
"""Modules that processes import later than the command line; Arrow looks for pandas with its first list."""


@cache
def fork_server() -> ForkServer:
    """Return what forks for all tests of this process."""
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    started = ForkServer(MODULES).__enter__()
    atexit.register(started.__exit__)
    return started


def free_port() -> int:
    """Return a port that nobody listens on now, and that nobody is given before it is used.

    It lies below those that the kernel gives to connections, in a range of this test process's own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(10_000 + worker % 8 * 2_500, 10_000 + (worker % 8 + 1) * 2_500)
    for port in random.SystemRandom().sample(own, len(own)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"all ports from {own.start} to {own.stop - 1} are taken")


def digest(path: Path) -> str:
    """Return a hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience:g} s for {what}"
        time.sleep(0.02)


@dataclass
class Federation:
    """A server and its clients as processes of this machine."""

    folder: Path
    settings: Mapping[str, Any]
    allow: str | None = None
    port: int = field(default_factory=free_port)
    server: Process | None = None
    clients: dict[str, Process] = field(default_factory=dict)
    started: list[Process] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    forks: Callable[[], ForkServer] | None = None
    """What forks where there is an ``environment``, which libraries that are imported by then do not see."""
    within: Sequence[str] = ()  # words that begin each command, such as those of a namespace

    def __post_init__(self) -> None:
        self.names = client_names(self.settings["clients"])
        make_all(self.folder / "certs", ["localhost"], self.names)
        (self.folder / "settings.yaml").write_text(yaml.safe_dump(dict(self.settings)))

    @property
    def run_folder(self) -> Path:
        """The folder of the only run."""
        (found,) = (self.folder / "runs").iterdir()
        return found

    def process(self, log: str, *words: str) -> Process:
        """Start a fenchel command; a copy of a process that has imported it, where nothing speaks against that."""
        environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "PYTHONFAULTHANDLER": "1"} | dict(self.environment)
        process: Process
        with (self.folder / f"{log}.log").open("ab") as output:
            forks = self.forks or (None if self.environment else fork_server)
            if self.within or forks is None:
                process = subprocess.Popen(
                    [*self.within, sys.executable, "-m", "fenchel", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
            else:
                process = forks().start(words, output, environment)
        self.started.append(process)
        return process

    def start_server(self, *words: str) -> None:
        """Start the server, or start it again where it was killed.

        Parameters
        ----------
        words
            More options of the command.
        """
        begun = (self.folder / "runs").is_dir() and any((self.folder / "runs").glob("*/checkpoint/latest"))
        what = ["--resume", str(self.run_folder)] if begun else [str(self.folder / "settings.yaml")]
        if not begun:
            for leftover in (self.folder / "runs").glob("*"):
                leftover.rename(self.folder / f"stillborn-{leftover.name}")
            what += ["--runs", str(self.folder / "runs")]
        self.server = self.process(
            "server",
            "server",
            *what,
            "--listen",
            f"127.0.0.1:{self.port}",
            "--certs",
            str(self.folder / "certs/server"),
            *words,
        )

    def client_words(self, name: str) -> list[str]:
        """Return the command line of a client."""
        words = ["client", f"localhost:{self.port}", "--certs", str(self.folder / "certs" / name)]
        words += ["--state", str(self.folder / "state" / name)]
        return words + (["--allow", self.allow] if self.allow else [])

    def start_client(self, name: str, *words: str) -> None:
        """Start a client, perhaps with more options, or start it again where it was killed."""
        self.clients[name] = self.process(name, *self.client_words(name), *words)

    def start(self) -> None:
        """Start everybody."""
        self.start_server()
        for name in self.names:
            self.start_client(name)

    def kill(self, who: str) -> int:
        """Kill the server or a client as the kernel kills; return its exit code, -9 unless it had ended before."""
        process = self.server if who == "server" else self.clients[who]
        assert process is not None
        process.send_signal(signal.SIGKILL)
        return process.wait()

    def restart(self, who: str) -> None:
        """Start whom :meth:`kill` killed."""
        if who == "server":
            self.start_server()
        else:
            self.start_client(who)

    def says(self, who: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{who}.log").read_text(errors="replace")

    def wait_for_round(self, t: int) -> None:
        """Wait until the server has done so many rounds."""
        wait_until(lambda: f"round {t} " in self.says("server"), f"round {t}")

    def finish_through_kills(self, victims: Mapping[int, str]) -> Path:
        """Start everybody, kill one in each of some rounds and start it again; return the run folder."""
        self.start()
        for t, who in victims.items():
            self.wait_for_round(t)
            self.kill(who)
            self.restart(who)
        return self.finish()

    def finish(self, patience: float = PATIENCE) -> Path:
        """Wait for the server to end well; return the run folder."""
        assert self.server is not None
        assert self._ends(self.server, patience) == 0, self._account()
        for process in self.clients.values():
            assert self._ends(process, 30) == 0, self._account()
        return self.run_folder

    def _ends(self, process: Process, patience: float) -> int:
        """Return a process's exit code; where it hangs, have everybody say where first."""
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            for each in filter(lambda each: each.poll() is None, [process, *self.started]):
                each.send_signal(signal.SIGABRT)
                each.wait()
            return -signal.SIGABRT

    def _account(self) -> str:
        """Return what everybody has printed."""
        return "\n".join(f"--- {who}\n{self.says(who)}" for who in ("server", *self.clients))

    def kept(self, run: Path) -> Iterator[dict[str, Value]]:
        """Yield what each client of a finished run has on its disk."""
        for name, member in checkpoints.load(RunFolder(run).checkpoint).members.items():
            (file,) = (self.folder / "state" / name).rglob(f"{member['base']:020d}.state")
            yield store.read(file)

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.started:
            process.kill()
            process.wait()
