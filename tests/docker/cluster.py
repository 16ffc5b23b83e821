"""A federation in containers, brought up with the project's own docker-compose.yml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fenchel.common.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[2]

_SIGNAL = """
import os, pathlib, sys
pid = "1"
while children := pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
    pid = children[0]
os.kill(int(pid), int(sys.argv[1]))
"""

_FLEET = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:7444/fleet", timeout=10).read().decode())
"""

_CONNECTIONS = """
import pathlib
print(sum(
    local.endswith(":1D13") and state == "01" and not local.endswith("0100007F:1D13")  # not the health check's
    for name in ("tcp", "tcp6")
    for _, local, _, state, *_ in map(str.split, pathlib.Path("/proc/net", name).read_text().splitlines()[1:])
))
"""


def command(*words: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; a failure shows what it said."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(words)} ended with code {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def model_bytes(folder: Path) -> bytes:
    """Return the model's bytes; those of the archive around it depend on the patch version of Python."""
    with zipfile.ZipFile(RunFolder(folder).model) as archive:
        return archive.read("model.npy")


@dataclass(frozen=True)
class Cluster:
    """One coordinator and its clients, under a project name of their own.

    Attributes
    ----------
    compose
        What docker-compose is called with.
    project
        The name of this cluster.
    environment
        What docker-compose.yml reads.
    runs
        The folder on the host.
    """

    compose: Sequence[str]
    project: str
    environment: Mapping[str, str]
    runs: Path

    def do(self, *words: str) -> str:
        """Call docker-compose."""
        return command(*self.compose, "-p", self.project, *words, environment=self.environment)

    def up(self, clients: int) -> None:
        """Bring the cluster up and return when all containers have been started."""
        self.do("up", "--detach", "--no-build", "--scale", f"client={clients}")

    def down(self) -> None:
        """Leave nothing behind."""
        self.do("down", "--volumes", "--remove-orphans", "--timeout", "1")

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, also of those that have ended."""
        ours = f"label=com.docker.compose.project={self.project}"
        theirs = f"label=com.docker.compose.service={service}"
        return command("docker", "ps", "-a", "-q", "--filter", ours, "--filter", theirs).split()

    def network(self) -> str:
        """Return the id of the network between the containers."""
        ours = f"label=com.docker.compose.project={self.project}"
        return command("docker", "network", "ls", "-q", "--filter", ours).strip()

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what the engine knows of a container."""
        found: dict[str, Any] = json.loads(command("docker", "inspect", container))[0]
        return found

    def signal(self, container: str, number: signal.Signals) -> None:
        """Send the client or server in a container a signal; what watches over it gets none."""
        # If that ends the container, it ends this command too: its exit code says nothing.
        owner = str(self.runs.stat().st_uid)  # who the containers run as; their root may send it no signals
        words = ["docker", "exec", "--user", owner, container, "python", "-c", _SIGNAL, str(int(number))]
        subprocess.run(words, check=False)

    def kill_process(self, container: str) -> None:
        """Kill the client or server in a container as the kernel kills; what watches over it stays."""
        self.signal(container, signal.SIGKILL)

    def container_of(self, client: str) -> str:
        """Return the id of the container that claimed a client's identity."""
        (container,) = (each for each in self.containers("client") if self.said(each, f"{client}: working"))
        return container

    def said(self, container: str, words: str) -> list[float]:
        """Return when a container has said something, in seconds since 1970."""
        lines = command("docker", "logs", "--timestamps", container).splitlines()
        return [datetime.fromisoformat(line.split()[0]).timestamp() for line in lines if words in line]

    def cut(self, container: str, network: str = "default") -> None:
        """Take a container's network away, as if its cable were pulled: nobody is told."""
        command("docker", "network", "disconnect", f"{self.project}_{network}", container)

    def mend(self, container: str, *names: str, network: str = "default") -> None:
        """Give it back; ``names`` are those by which others find the container there."""
        aliases = [word for name in names for word in ("--alias", name)]
        command("docker", "network", "connect", *aliases, f"{self.project}_{network}", container)

    def address(self, container: str) -> str:
        """Return a container's IP address in the only network that it is in."""
        (inside,) = self.inspect(container)["NetworkSettings"]["Networks"].values()
        return str(inside["IPAddress"])

    def fleet(self) -> dict[str, dict[str, Any]]:
        """Return how each client stands, from the dashboard of the server, which must have one at port 7444."""
        (server,) = self.containers("server")
        told = json.loads(command("docker", "exec", server, "python", "-c", _FLEET))
        return {each["client"]: each for each in told["clients"]}

    def received(self, container: str) -> int:
        """Return how many bytes a container has received, by its kernel's account."""
        return int(command("docker", "exec", container, "cat", "/sys/class/net/eth0/statistics/rx_bytes"))

    def connections(self) -> int:
        """Return how many connections clients have to the server, by its kernel's account."""
        (server,) = self.containers("server")
        return int(command("docker", "exec", server, "python", "-c", _CONNECTIONS))

    def logs(self, service: str) -> str:
        """Return what a service's containers have said."""
        return self.do("logs", "--no-color", service)

    def rounds(self) -> int:
        """Return the last round that the server has told of."""
        told = [words.split()[0] for words in self.logs("server").split(" round ")[1:]]
        return max((int(word) for word in told if word.isdigit()), default=0)

    def wait(self, done: Callable[[], bool], what: str, patience: float = 120.0) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + patience
        while not done():
            if time.monotonic() > deadline:
                pytest.fail(f"not after {patience:g} s: {what}\n{self.do('logs', '--no-color', '--tail=40')}")
            time.sleep(0.1)

    def wait_for_round(self, number: int) -> None:
        """Wait until the server has told of a round."""
        self.wait(lambda: self.rounds() >= number, f"round {number}")

    def finished(self) -> dict[str, int]:
        """Wait until all containers have ended; return their exit codes by name."""
        ours = [each for service in ("certs", "server", "client") for each in self.containers(service)]
        self.wait(lambda: all(self.inspect(each)["State"]["Status"] == "exited" for each in ours), "the end of all")
        return {found["Name"]: found["State"]["ExitCode"] for found in map(self.inspect, ours)}

    def run_folder(self) -> Path:
        """Return the folder of the only run, which is over."""
        (folder,) = self.runs.iterdir()
        return folder
