"""Survey of another machine before the start of client processes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software

if TYPE_CHECKING:
    from fenchel.deploy.launch.launchers.interface import Requirements

_PATIENCE = 5.0  # timeout for the connection to the server, in seconds


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Findings on a machine that is to run client processes.

    Attributes
    ----------
    host
        Host name of the machine, as reported by its operating system.
    software
        Version of Fenchel on the machine.
    dial
        Address at which the machine tried to reach the server.
    problem
        Error of the connection to the server, empty after success.
    shares
        Whether the marker file is visible on the machine.
    """

    host: str
    software: str
    dial: str
    problem: str
    shares: bool

    @classmethod
    def take(cls, dial: str, port: int, file: str) -> Self:
        """Survey this machine.

        Parameters
        ----------
        dial
            Address of the server; if empty, the source address of the ssh connection.
        file
            Path of the marker file; empty without one.
        """
        dial = dial or os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
        problem = ""
        try:
            socket.create_connection((dial, port), _PATIENCE).close()
        except (OSError, UnicodeError) as error:  # the latter for names that no resolver takes, such as a..b
            problem = getattr(error, "strerror", None) or str(error)
        shares = bool(file) and Path(file).exists()
        return cls(host=os.uname().nodename, software=software(), dial=dial, problem=problem, shares=shares)

    def line(self) -> str:
        """Return the survey as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> list[Self]:
        """Return the surveys in an output, and skip other lines, which login shells and Slurm prologs print."""
        found = []
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                answer = json.loads(line)
                texts = {name: sanitize(str(answer[name])) for name in ("host", "software", "dial", "problem")}
                found.append(cls(**texts, shares=bool(answer["shares"])))
        return found

    def check(self, name: str, port: int) -> None:
        """Raise an error if client processes cannot run on the machine.

        Parameters
        ----------
        name
            Name of the machine in the user's settings, for errors.
        port
            Port of the connection to the server.

        Raises
        ------
        SettingsError
            If the machine has another version of Fenchel.
        UnreachableError
            If the machine cannot reach the server.
        """
        if self.software != software():
            raise SettingsError(
                f"the host has {self.software}, but this machine {software()}; install the same version", source=name
            )
        if self.problem:
            raise UnreachableError(
                f"the host cannot reach this machine at {self.dial or 'an unknown address'}, port {port}: "
                f"{self.problem}. Open a port in the firewall and name it (port), or name another address (dial)",
                source=name,
            )


@contextmanager
def marker(folder: Path) -> Iterator[Path]:
    """Create a marker file in a folder, by which other machines test their access to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "shared"
    file.touch()
    try:
        yield file
    finally:
        file.unlink()


def temporary_state(found: Mapping[str, Survey], required: Requirements) -> str | None:
    """Return the path of a temporary folder on each node for journals that no restart needs.

    The result is ``None`` if all nodes can access the journals' folder.

    Parameters
    ----------
    found
        Surveys of the nodes by name.

    Raises
    ------
    SettingsError
        If a node cannot access the journals' folder, although restarted clients need their journals.
    """
    blind = [node for node, survey in found.items() if not survey.shares]
    if blind and not required.stateless:
        raise SettingsError(
            f"node {blind[0]} cannot see {required.journals}, the folder of the clients' journals; put run folders "
            "on storage that all nodes share",
            key="--runs",
        )
    return f"/tmp/fenchel-{required.run}" if blind else None  # noqa: S108
