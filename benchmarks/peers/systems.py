"""The systems that are compared: what each is, and how a federation of it is brought up."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.peers import environments, processes
from benchmarks.peers.environments import Environment
from benchmarks.peers.job import Job, JobError, Result
from benchmarks.peers.processes import Processes, free_port, importable

BringUp: TypeAlias = Callable[[Processes, Path, Job, Path], None]
"""Starts all processes of a federation with an interpreter; the server will write its result into the folder."""

_HERE = Path(__file__).parent
_TIMEOUT = 900.0
_STREAM = "gRPC, one stream a client"


@dataclass(frozen=True)
class System:
    """A way to do the job."""

    name: str  # as in the table
    environment: Environment  # in which its processes run
    wire: str  # what carries the vectors, for people
    note: str  # what happens in a round besides, for people
    bring_up: BringUp  # starts it
    tls: bool = False  # whether its connections are encrypted
    slow: bool = False  # a round takes seconds, so few are measured
    computes: bool = True  # it adds and averages; otherwise there is no result to check

    def measure(self, job: Job) -> list[float]:
        """Return the seconds of each round that counts."""
        with tempfile.TemporaryDirectory(prefix="fenchel-peer-") as temporary, importable() as variables:
            folder = Path(temporary)
            # none of them shall report its use, or look for newer versions, while it is measured
            variables |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
            variables |= {"FLWR_HOME": str(folder / "flwr"), "HOME": str(folder)}
            variables["PATH"] = f"{self.environment.python.parent}{os.pathsep}{variables['PATH']}"
            if self.environment == environments.FENCHEL:
                variables["PYTHONPATH"] = str(processes.ROOT)
            try:
                with Processes(folder, variables) as started:
                    self.bring_up(started, self.environment.python, job, folder)
                    started.wait_for_result(_TIMEOUT)
            except JobError as error:
                raise JobError(f"{self.name}: {error}") from None
            result = Result.read(folder)
            if self.computes:
                result.check(job)
            return result.seconds(job)


def _command(python: Path, module: str, job: Job, folder: Path) -> list[str | Path]:
    return [python, "-m", module, "--job", job.to_json(), "--folder", folder]


def _alone(module: str, *flags: str) -> BringUp:
    """Return how to start a module that brings up its clients itself."""

    def bring_up(started: Processes, python: Path, job: Job, folder: Path) -> None:
        started.start("server", [*_command(python, module, job, folder), *flags])

    return bring_up


def _server_and_clients(module: str) -> BringUp:
    """Return how to start a module as a server, and once for each client."""

    def bring_up(started: Processes, python: Path, job: Job, folder: Path) -> None:
        port = free_port()
        command = [*_command(python, module, job, folder), "--port", str(port)]
        started.start("server", command)
        started.wait_for_port(port)
        for client in range(job.clients):
            started.start(f"client-{client}", [*command, "--client", str(client)])

    return bring_up


def _flower_deployment(started: Processes, python: Path, job: Job, folder: Path) -> None:
    """Start a SuperLink and SuperNodes and hand the app in with ``flwr run``, as Flower's documentation has it."""
    programs = python.parent
    port = free_port()
    app = folder / "app"
    shutil.copytree(_HERE / "flower_app", app / "flower_app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_HERE / "flower_app.toml", app / "pyproject.toml")
    (folder / "flwr").mkdir()
    connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (folder / "flwr" / "config.toml").write_text(connection)
    link = [f"{programs}/flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    started.start("superlink", [*link, "--disable-runtime-dependency-installation"])
    started.wait_for_port(port)
    node = [f"{programs}/flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
    for client in range(job.clients):
        own = ["--port", str(free_port())]
        own += ["--node-config", f"partition-id={client} num-partitions={job.clients}"]
        started.start(f"supernode-{client}", [*node, *own])
    overrides = folder / "run.toml"
    overrides.write_text(f"job = {json.dumps(job.to_json())}\nfolder = {json.dumps(str(folder))}\n")
    started.start("run", [f"{programs}/flwr", "run", app, "here", "--run-config", overrides])


FENCHEL = "Fenchel"
CLASSIC = "Flower classic gRPC server"
DEPLOYMENT = "Flower deployment engine"

SYSTEMS = (
    System(
        "bare gRPC echo",
        environments.FENCHEL,
        wire=_STREAM,
        note="sends the bytes back; no sum, no mean, no checks",
        bring_up=_alone("benchmarks.peers.echo"),
        computes=False,
    ),
    System(
        FENCHEL,
        environments.FENCHEL,
        wire=_STREAM,
        note="everything that is on by default: checks, journals, metrics, checkpoints",
        bring_up=_alone("benchmarks.peers.fenchel_fedavg"),
    ),
    System(
        "Fenchel, TLS",
        environments.FENCHEL,
        wire=_STREAM,
        note="the same, with mutual TLS: the default",
        bring_up=_alone("benchmarks.peers.fenchel_fedavg", "--tls"),
        tls=True,
    ),
    System(
        CLASSIC,
        environments.FLOWER,
        wire=_STREAM,
        note="`start_server` and `start_client`, which Flower calls deprecated; no state is saved",
        bring_up=_server_and_clients("benchmarks.peers.flower_classic"),
    ),
    System(
        DEPLOYMENT,
        environments.FLOWER,
        wire="HTTP",
        note="`flower-superlink`, `flower-supernode`, `flwr run`: nodes and server ask for messages every 3 s, and "
        "each message starts a process",
        bring_up=_flower_deployment,
        slow=True,
    ),
    System(
        "APPFL",
        environments.APPFL,
        wire="gRPC, one call a round and client",
        note="a synchronous scheduler; `optimize_memory: false`, which is faster than its default",
        bring_up=_server_and_clients("benchmarks.peers.appfl_grpc"),
        slow=True,
    ),
    System(
        "NVIDIA FLARE simulator",
        environments.NVFLARE,
        wire="TCP",
        note="clients ask for tasks every 2 s at the latest; the model is saved each round",
        bring_up=_alone("benchmarks.peers.nvflare_server"),
        slow=True,
    ),
)
