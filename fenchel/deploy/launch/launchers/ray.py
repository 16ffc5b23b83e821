"""Client processes as Ray actors, on nodes with the same version of Fenchel.

Ray runs in a separate process, :mod:`fenchel.deploy.launch.launchers.ray_driver`, so that the secrets of client
processes never enter the server's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software
from fenchel.deploy.address import everywhere
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from fenchel.deploy.launch.launchers.ray_driver import DIAL, LOOKING
from fenchel.deploy.launch.launchers.survey import Survey, marker, temporary_state

_HANDOVER = "fenchel.deploy.launch.launchers.handover"
_DRIVER = "fenchel.deploy.launch.launchers.ray_driver"

_CONNECTION = 5.0  # timeout for the connection to the cluster, in seconds
_PATIENCE = 30.0 + LOOKING  # timeout for the driver's start and the survey of nodes, in seconds
_END = 25.0  # timeout for the driver to exit, in seconds
_LONGEST = 16 << 20  # size limit of the driver's report on all nodes, in bytes


class RaySettings(piped.AddressSettings):
    """Address of a Ray cluster, and resources of client processes."""

    address: str = Field("", description="HOST:PORT of a running cluster; by default RAY_ADDRESS, or this machine's")
    cpus: float = Field(1, ge=0, description="processors for each client process, also a fraction")
    gpus: float = Field(0, ge=0, description="GPUs for each client process, also a fraction")
    resources: dict[str, float] = Field(
        default_factory=dict, description="custom resources for each client process, by their names"
    )

    @field_validator("address")
    @classmethod
    def _reaches_nodes(cls, address: str) -> str:
        if "://" in address:
            raise ValueError(
                f"expected HOST:PORT of the head node, got {address!r}; start fenchel up on a machine of the cluster, "
                "because the Ray Client (ray://) is not supported"
            )
        return address

    @property
    def actor(self) -> dict[str, Any]:
        """Options of each actor, without Ray's restarts because Fenchel restarts processes for all engines."""
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            **({"resources": self.resources} if self.resources else {}),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            "max_concurrency": 2,
        }


@dataclass
class RayLauncher:
    """Launcher that starts client processes as Ray actors.

    Parameters
    ----------
    settings
        Address of the cluster, and resources of client processes.
    """

    Settings: ClassVar[type[Section]] = RaySettings
    on_this_machine: ClassVar[bool] = False

    settings: RaySettings
    _socket: str = field(init=False)  # path of the Unix socket on which the driver accepts client processes
    _driver: asyncio.subprocess.Process | None = None

    @staticmethod
    def missing() -> list[str]:
        """Check that Ray is installed, and return instructions if not."""
        return [] if find_spec("ray") else ["ray is not installed: pip install 'fenchel[ray]'"]

    def plan(self, process: ClientProcess) -> str:
        """Return the actor with the command that it runs."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.settings.actor.items())
        return f"ray.remote({options}): {piped.plan(['python', *_words(process)])}"

    async def open(self, required: Requirements) -> Site:
        """Connect to the cluster, and survey every node that is large enough for a client process.

        Raises
        ------
        SettingsError
            If the cluster is too small, or a node has another version of Fenchel or cannot access the journals' folder.
        UnreachableError
            If there is no cluster, or a node does not answer or cannot reach this machine.
        """
        await self._knock()
        listen = everywhere(self.settings.dial)
        with piped.listening(listen, self.settings.port) as port, marker(required.journals) as file:
            try:
                found = await self._connect(port, file, required.processes)
                self._check_room(found, required.processes)
                surveys = self._surveys(found["nodes"], port)
                temporary = temporary_state(surveys, required)
                await self._tell(f"{temporary or ''}\n")
            except BaseException:
                await self.close(remove_journals=False)
                raise
        state = temporary or str(required.journals)
        return Site(listen=listen, port=self.settings.port, dial=found["dial"], state=state)

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start an actor on any node with free resources."""
        return await piped.start([sys.executable, "-P", "-m", _HANDOVER, self._socket, *_words(process)], process)

    async def close(self, *, remove_journals: bool) -> None:
        """End the driver, which removes the run's temporary folders on nodes."""
        if self._driver is None:
            return
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END):
                    await self._driver.wait()
        finally:
            if self._driver.returncode is None:
                self._driver.kill()
                await self._driver.wait()
            self._driver = None

    async def _knock(self) -> None:
        """Test the address of the cluster first, because Ray would retry for minutes."""
        address = self.settings.address or os.environ.get("RAY_ADDRESS", "")
        if (parts := re.fullmatch(r"\[?(.+?)\]?:(\d+)", address)) is None:
            return
        try:
            async with asyncio.timeout(_CONNECTION):
                _, writer = await asyncio.open_connection(parts[1], int(parts[2]))
        except (OSError, TimeoutError, OverflowError) as error:
            reason = getattr(error, "strerror", "") or f"no answer in {_CONNECTION:g} s"
            raise self._unreachable(reason) from None
        writer.close()

    def _unreachable(self, reason: str) -> UnreachableError:
        where = self.settings.address or os.environ.get("RAY_ADDRESS", "") or "this machine"
        return UnreachableError(
            f"no Ray cluster is usable at {where}: {sanitize(reason)[-500:]}; start one (ray start --head), or name "
            "its HOST:PORT",
            key="address",
        )

    async def _connect(self, port: int, file: Path, processes: int) -> Mapping[str, Any]:
        """Start the driver, and return the driver's report on the cluster."""
        order = {
            "address": self.settings.address,
            "options": self.settings.actor,
            "dial": self.settings.dial,
            "processes": processes,
            "look": ["-P", "-m", piped.REMOTE, "look", DIAL, str(port), str(file)],
        }
        with tempfile.TemporaryFile() as errors:
            self._driver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _DRIVER, json.dumps(order)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LONGEST,
            )
            assert self._driver.stdout is not None
            try:
                async with asyncio.timeout(_PATIENCE):
                    line = await self._driver.stdout.readline()
            except TimeoutError:
                self._driver.kill()
                raise self._unreachable(f"no answer in {_PATIENCE:g} s") from None
            if not line:
                errors.seek(0)
                raise self._unreachable(errors.read().decode(errors="replace").strip())
        found: dict[str, Any] = json.loads(line)
        if "problem" in found:
            raise self._unreachable(found["problem"])
        self._socket = found["socket"]
        return found

    async def _tell(self, line: str) -> None:
        assert self._driver is not None
        assert self._driver.stdin is not None
        self._driver.stdin.write(line.encode())
        with suppress(BrokenPipeError, ConnectionResetError):  # start() reports a lost driver
            await self._driver.stdin.drain()

    def _check_room(self, found: Mapping[str, Any], processes: int) -> None:
        if (room := found["room"]) < processes:
            wanted = {"CPU": self.settings.cpus, "GPU": self.settings.gpus, **self.settings.resources}
            has = ", ".join(f"{found['resources'].get(name, 0):g} {name}" for name in wanted)
            each = ", ".join(f"{number:g} {name}" for name, number in wanted.items())
            raise SettingsError(
                f"the cluster has {has}, enough for {room} client processes of {each}, but {processes} are needed. "
                "Add nodes, start fewer (--processes), or request less for each (--cpus, --gpus)",
                key="--on ray",
            )

    def _surveys(self, nodes: list[dict[str, Any]], port: int) -> Mapping[str, Survey]:
        """Return the survey of each node by the node's address."""
        surveys = {}
        for each in nodes:
            node = each["node"]
            if each["result"] is None:
                raise UnreachableError(
                    f"no task started within {LOOKING:g} s; check the load of the node, and the logs of Ray there",
                    source=node,
                )
            _, printed, errors = each["result"]
            found = Survey.read(printed)
            if not found:
                raise SettingsError(
                    f"the node's Python has no Fenchel, or another version ({sanitize(errors.strip())}); install "
                    f"{software()} in the Python that runs Ray",
                    source=node,
                )
            surveys[node] = found[0]
            surveys[node].check(node, port)
        return surveys


def _words(process: ClientProcess) -> list[str]:
    """Return the arguments of the Python interpreter on a node."""
    return ["-P", "-m", piped.REMOTE, *process.words]
