"""Client processes on machines that ssh reaches, each of which has the same Fenchel.

Everything that ssh needs is in the user's own configuration: keys, agents, jump hosts, known hosts.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import plain
from fenchel.common.version import software
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Site

# A network may be away for a minute; clients connect again by themselves before ssh gives up.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=12")
_PATIENCE = 30.0  # seconds for the first answer of a host


class SshSettings(Section):
    """Hosts of client processes, and how they are reached."""

    hosts: tuple[str, ...] = Field(min_length=1, description="hosts as ssh names them; they take turns")
    python: str = Field(sys.executable, description="Python on the hosts that has Fenchel")
    dial: str = Field("", description="address at which the hosts reach this machine; by default where ssh comes from")
    port: int = Field(0, ge=0, le=65535, description="port on which the server listens; 0: a free one")
    state: str = Field(".local/state/fenchel", description="folder on the hosts for journals, from the home folder")
    options: tuple[str, ...] = Field((), description="more options of ssh, each as after -o")

    @field_validator("hosts")
    @classmethod
    def _named(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not host or host.startswith("-"):
                raise ValueError(f"expected the name of a host, got {host!r}")
        return hosts


@dataclass
class SshLauncher:
    """Starts client processes by OpenSSH's own command.

    Parameters
    ----------
    settings
        Hosts, and how they are reached.
    """

    settings: SshSettings
    _state: str = field(init=False)  # folder of the run's journals on each host

    async def open(self, run: str) -> Site:
        """Look at every host.

        Raises
        ------
        SettingsError
            A host has no Fenchel, or another version; or hosts see this machine at different addresses.
        UnreachableError
            A host cannot be reached, or cannot reach this machine.
        """
        everywhere = "::" if ":" in self.settings.dial else "0.0.0.0"  # noqa: S104
        with _listening(everywhere, self.settings.port) as port:
            found = await asyncio.gather(*(self._look(host, port) for host in dict.fromkeys(self.settings.hosts)))
        addresses = sorted(set(found))
        if len(addresses) > 1:
            raise SettingsError(
                f"hosts see this machine at different addresses: {', '.join(addresses)}; name the one that all of them "
                "reach",
                key="dial",
            )
        self._state = f"{self.settings.state}/{run}"
        return Site(listen=everywhere, port=self.settings.port, dial=addresses[0], state=self._state)

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start a process on the host whose turn it is; one that is started again finds its journals there."""
        host = self.settings.hosts[process.number % len(self.settings.hosts)]
        return await piped.start(self._command(host, *process.words), process)

    async def close(self, *, completed: bool) -> None:
        """Remove the journals of a completed run from the hosts; one that is to go on needs them."""
        if completed:
            hosts = dict.fromkeys(self.settings.hosts)
            await asyncio.gather(*(_said(self._ssh(host, "exec", "rm", "-rf", "--", self._state)) for host in hosts))

    def _ssh(self, host: str, *words: str) -> list[str]:
        # Of an option that is given twice, ssh takes the first.
        given = (word for option in (*self.settings.options, *_OPTIONS) for word in ("-o", option))
        return ["ssh", "-T", *given, "--", host, *map(shlex.quote, words)]

    def _command(self, host: str, *words: str) -> list[str]:
        return self._ssh(host, "exec", self.settings.python, "-P", "-m", piped.REMOTE, *words)

    async def _look(self, host: str, port: int) -> str:
        """Return the address at which a host reaches this machine."""
        code, told, said = await _said(self._command(host, "look", self.settings.dial, str(port)))
        if code in (255, None):
            raise UnreachableError(
                f"ssh does not get there: {said or f'no answer in {_PATIENCE:g} s'}; try: ssh -o BatchMode=yes {host}",
                source=host,
            )
        try:
            found: dict[str, Any] = json.loads(told.strip().rpartition("\n")[2])  # a shell may print before
            other, dial, problem = (plain(str(found[name])) for name in ("software", "dial", "problem"))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SettingsError(
                f"{self.settings.python} has no Fenchel there, or another version ({said or plain(told[:200])}); "
                f"install {software()}, and name its Python",
                source=host,
                key="python",
            ) from None
        if other != software():
            raise SettingsError(f"has {other}, and this machine {software()}; install one version", source=host)
        if problem:
            raise UnreachableError(
                f"cannot reach this machine at {dial or 'an unknown address'}, port {port}: {problem}; open a port in "
                "the firewall and name it (port), or name another address (dial)",
                source=host,
            )
        return dial


async def _said(command: list[str]) -> tuple[int | None, str, str]:
    """Run a command; return its exit code (``None``: it took too long), its output and the end of its errors."""
    running = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            told, said = await running.communicate()
    except TimeoutError:
        return None, "", ""
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    return running.returncode, told.decode(errors="replace"), plain(said.decode(errors="replace").strip()[-500:])


@contextmanager
def _listening(host: str, port: int) -> Iterator[int]:
    """Listen where the server will, for hosts to try; yield the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UnreachableError(f"cannot listen on port {port}: {error.strerror}", key="port") from None
    with listener:
        yield listener.getsockname()[1]
