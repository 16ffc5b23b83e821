"""Client processes on hosts that ssh reaches, each with the same version of Fenchel.

The user's own ssh configuration provides keys, agents, jump hosts and known hosts.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, field_validator

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software
from fenchel.deploy.address import everywhere
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from fenchel.deploy.launch.launchers.survey import Survey

# ssh tolerates a network outage of one minute, within which clients reconnect on their own.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=12")


class SshSettings(piped.PipedSettings):
    """Hosts of client processes, and options of the connections."""

    hosts: tuple[str, ...] = Field(min_length=1, description="hosts as ssh names them; they take turns")
    state: str = Field(".local/state/fenchel", description="folder on the hosts for journals, from the home folder")
    options: tuple[str, ...] = Field((), description="more options of ssh, each as after -o")

    @field_validator("hosts")
    @classmethod
    def _named(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not host or host.startswith("-"):
                raise ValueError(
                    f"expected the name of a host, not empty and without a hyphen at its beginning, got {host!r}"
                )
        return hosts

    @field_validator("state")
    @classmethod
    def _without_tilde(cls, state: str) -> str:
        if not state or state.startswith("~"):  # no shell on the hosts expands it
            raise ValueError(f"expected a path from the home folder without ~, or an absolute one, got {state!r}")
        return state


@dataclass
class SshLauncher:
    """Launcher that starts client processes with the command ``ssh`` of OpenSSH.

    Parameters
    ----------
    settings
        Hosts of client processes, and options of the connections.
    """

    Settings: ClassVar[type[Section]] = SshSettings
    on_this_machine: ClassVar[bool] = False

    settings: SshSettings
    _state: str = field(init=False)  # folder on each host for the run's journals

    @staticmethod
    def missing() -> list[str]:
        """Check that the command ``ssh`` is installed, and return instructions if not."""
        return [] if shutil.which("ssh") else ["ssh was not found: apt install openssh-client"]

    def plan(self, process: ClientProcess) -> str:
        """Return the local ``ssh`` command."""
        return piped.plan(self._start(process))

    async def open(self, required: Requirements) -> Site:
        """Check the version of Fenchel on every host, and find the address at which hosts reach this machine.

        Raises
        ------
        SettingsError
            If a host has no or another version of Fenchel, or hosts reach this machine at different addresses.
        UnreachableError
            If a host cannot be reached, or cannot reach this machine.
        """
        listen = everywhere(self.settings.dial)
        with piped.listening(listen, self.settings.port) as port:
            looking = [self._look(host, port) for host in dict.fromkeys(self.settings.hosts)]
            # Wait for all hosts, so that no task outlives this method.
            found = await asyncio.gather(*looking, return_exceptions=True)
        addresses = set()
        for each in found:
            if isinstance(each, BaseException):
                raise each
            addresses.add(each)
        if len(addresses) > 1:
            raise SettingsError(
                f"the hosts see this machine at different addresses ({', '.join(sorted(addresses))}); name the one "
                "that all of them can reach",
                key="dial",
            )
        self._state = f"{self.settings.state}/{required.run}"
        return Site(listen=listen, port=self.settings.port, dial=addresses.pop(), state=self._state)

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start a process on its host, chosen in turn by the process's number, so that a restart finds its journals."""
        return await piped.start(self._start(process), process)

    async def close(self, *, remove_journals: bool) -> None:
        """Remove the journals from the hosts if ``remove_journals`` is true."""
        if remove_journals:
            hosts = list(dict.fromkeys(self.settings.hosts))
            removing = [piped.said(self._ssh(host, "exec", "rm", "-rf", "--", self._state)) for host in hosts]
            for host, (code, _, errors) in zip(hosts, await asyncio.gather(*removing), strict=True):
                if code != 0:
                    raise UnreachableError(
                        f"the folder {self._state} could not be removed ({errors}), and contains journals; remove "
                        "it there",
                        source=host,
                    )

    def _start(self, process: ClientProcess) -> list[str]:
        host = self.settings.hosts[process.number % len(self.settings.hosts)]
        return self._command(host, *process.words)

    def _ssh(self, host: str, *words: str) -> list[str]:
        # The user's options come first, because ssh uses the first value of a repeated option.
        given = (word for option in (*self.settings.options, *_OPTIONS) for word in ("-o", option))
        return ["ssh", "-T", *given, "--", host, *map(shlex.quote, words)]

    def _command(self, host: str, *words: str) -> list[str]:
        return self._ssh(host, "exec", self.settings.python, "-P", "-m", piped.REMOTE, *words)

    async def _look(self, host: str, port: int) -> str:
        """Return the address at which a host reaches this machine."""
        code, output, errors = await piped.said(self._command(host, "look", self.settings.dial, str(port), ""))
        if code in (255, None):
            given = shlex.join(f"-o{option}" for option in ("BatchMode=yes", *self.settings.options))
            raise UnreachableError(f"ssh cannot connect: {errors}; try ssh {given} {host}", source=host)
        found = Survey.read(output)
        if not found:
            raise SettingsError(
                f"the host's {self.settings.python} has no Fenchel, or another version "
                f"({errors or sanitize(output[:200])}); install {software()} there, and name its Python",
                source=host,
                key="python",
            )
        found[0].check(host, port)
        return found[0].dial
