"""Client processes in containers of a Docker engine on this machine, on a separate network for each run.

The launcher calls the command ``docker``, which uses the user's contexts, credentials and engine address. The secrets
of a container thus never enter the server's process.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software
from fenchel.deploy.address import everywhere
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from fenchel.deploy.launch.launchers.survey import Survey

LABEL = "org.fenchel.run"
"""Label of all containers and networks of a run, with the run's id as its value."""

_CONFINED = (
    *("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--log-driver=none"),
    *("--env=OPENBLAS_CORETYPE", "--env=HOME=/tmp"),
)
_ABANDONED = "1h"  # age from which unused networks count as left behind by a killed command


class DockerSettings(piped.AddressSettings):
    """Image and resources of the containers of client processes."""

    image: str = Field("fenchel", description="image that has this Fenchel", min_length=1, pattern="^[^-]")
    cpus: float | None = Field(None, gt=0, description="processors that a client process may use; by default all")
    gpus: int = Field(0, ge=0, description="GPUs that client processes share, the first ones of this machine")
    memory: str = Field("", description="memory that a client process may use, such as 2g; by default any")
    options: tuple[str, ...] = Field((), description="more options of docker run, such as --env=NAME=VALUE")


@dataclass
class DockerLauncher:
    """Launcher that starts a container for each client process.

    Parameters
    ----------
    settings
        Image and resources of the containers.
    """

    Settings: ClassVar[type[Section]] = DockerSettings
    on_this_machine: ClassVar[bool] = True

    settings: DockerSettings
    _run: str = field(default="RUN", init=False)
    _mounts: list[str] = field(default_factory=list, init=False)

    @staticmethod
    def missing() -> list[str]:
        """Check that the command ``docker`` is installed, and return instructions if not."""
        return [] if shutil.which("docker") else ["docker was not found: https://docs.docker.com/engine/install"]

    def plan(self, process: ClientProcess) -> str:
        """Return the command that starts the container."""
        return piped.plan(self._container(*process.words))

    async def open(self, required: Requirements) -> Site:
        """Create the network of the run, and test the image and the route to this machine from a container.

        Raises
        ------
        SettingsError
            If the image is missing or has another version of Fenchel, or if the engine cannot access the run folder.
        UnreachableError
            If the engine does not answer, or a container cannot reach this machine.
        """
        self._run = required.run
        self._mounts = _mounts(required)
        await self._check_image()
        await self._remove()  # remove containers that a killed command of this run left behind
        await _docker("network", "prune", "--force", f"--filter=label={LABEL}", f"--filter=until={_ABANDONED}")
        # From an internal network, containers reach only this machine, at the network's gateway.
        internal = [] if self.settings.dial else ["--internal"]
        await _docker("network", "create", f"--label={LABEL}={self._run}", *internal, self._network)
        try:
            gateway = await _docker(
                *("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", self._network)
            )
            dial = self.settings.dial or gateway.strip()
            listen = everywhere(dial) if self.settings.dial else dial
            with piped.listening(listen, self.settings.port) as port:
                await self._look(dial, port)
        except BaseException:
            await self._remove()
            raise
        return Site(listen=listen, port=self.settings.port, dial=dial, state=str(required.journals))

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start a client process in a new container."""
        return await piped.start(self._container(*process.words), process)

    async def close(self, *, remove_journals: bool) -> None:
        """Remove the containers and the network of the run."""
        await self._remove()

    async def _remove(self) -> None:
        mine = f"--filter=label={LABEL}={self._run}"
        if containers := (await _docker("ps", "--all", "--quiet", mine)).split():
            # Errors are ignored, because containers may be exiting already.
            await piped.said(["docker", "rm", "--force", *containers])
        if networks := (await _docker("network", "ls", "--quiet", mine)).split():
            await _docker("network", "rm", *networks)

    @property
    def _network(self) -> str:
        return f"fenchel-{self._run}"

    def _container(self, *words: str) -> list[str]:
        resources = [f"--cpus={self.settings.cpus:g}"] if self.settings.cpus else []
        resources += [f"--gpus={self.settings.gpus}"] if self.settings.gpus else []
        resources += [f"--memory={self.settings.memory}"] if self.settings.memory else []
        return [
            *("docker", "run", "--rm", "--interactive", f"--label={LABEL}={self._run}", f"--network={self._network}"),
            *(f"--user={os.getuid()}:{os.getgid()}", *_CONFINED, f"--workdir={Path.cwd()}", *self._mounts),
            *(*resources, *self.settings.options),
            *("--entrypoint=python", self.settings.image, "-P", "-m", piped.REMOTE, *words),
        ]

    async def _check_image(self) -> None:
        image = self.settings.image
        code, _, errors = await piped.said(["docker", "image", "inspect", "--format=found", image])
        if code == 0:
            return
        if "No such image" not in errors:
            raise UnreachableError(f"the Docker engine does not answer: {errors}; see docker info", key="--on docker")
        raise SettingsError(
            f"the image {image} is not on this machine; build it (docker build --file deploy/Dockerfile --tag "
            f"{image} .), or name another one",
            key="image",
        )

    async def _look(self, dial: str, port: int) -> None:
        code, output, errors = await piped.said(self._container("look", dial, str(port), ""))
        found = Survey.read(output)
        if not found:
            raise SettingsError(
                f"the image {self.settings.image} has no {software()}, or its container does not start "
                f"({errors or sanitize(output[:200])}, code {code}); build the image from this version",
                key="image",
            )
        found[0].check(self.settings.image, port)


def _mounts(required: Requirements) -> list[str]:
    """Return the mount options for the journals, data sets and files of a run, with the paths of this machine."""
    required.journals.mkdir(parents=True, exist_ok=True)
    read = [path.absolute() for path in (*required.files, *([required.data] if required.data else []))]
    mounts = [_mount(path, "readonly") for path in dict.fromkeys(read)]
    if required.data is not None:
        mounts.append(f"--env=FENCHEL_DATA={required.data.absolute()}")
    return [_mount(required.journals), *mounts]


def _mount(path: Path, *options: str) -> str:
    """Return the option that mounts a path of this machine, in CSV as Docker reads it, as a path may have commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(("type=bind", f"src={path}", f"dst={path}", *options))
    return f"--mount={line.getvalue()}"


async def _docker(*words: str) -> str:
    """Run a ``docker`` command, and return its output."""
    code, output, errors = await piped.said(["docker", *words])
    if code != 0:
        raise UnreachableError(f"docker {words[0]} {words[1]} failed: {errors}; see docker info", key="--on docker")
    return output
