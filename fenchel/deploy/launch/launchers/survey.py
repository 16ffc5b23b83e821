"""A survey of another machine before client processes are started there."""

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
from fenchel.common.untrusted_text import plain
from fenchel.common.version import software

if TYPE_CHECKING:
    from fenchel.deploy.launch.launchers.interface import Requirements

_PATIENCE = 5.0  # timeout for the connection to the server, in seconds


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Surroundings of a client process on a machine.

    Attributes
    ----------
    host
        Name that the machine has for itself.
    software
        Its Fenchel.
    dial
        Address at which it tried to reach the server.
    problem
        Why that failed; empty where it did not.
    shares
        Whether it sees the file that it was asked for.
    """

    host: str
    software: str
    dial: str
    problem: str
    shares: bool

    @classmethod
    def take(cls, dial: str, port: int, file: str) -> Self:
        """Look around on this machine.

        Parameters
        ----------
        dial
            Address of the server; by default the one that ssh comes from.
        """
        dial = dial or os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
        problem = ""
        try:
            socket.create_connection((dial, port), _PATIENCE).close()
        except OSError as error:
            problem = error.strerror or str(error)
        shares = bool(file) and Path(file).exists()
        return cls(host=os.uname().nodename, software=software(), dial=dial, problem=problem, shares=shares)

    def line(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> list[Self]:
        """Read what :meth:`line` wrote elsewhere, once or more, among lines that shells and prologs print."""
        found = []
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                told = json.loads(line)
                texts = {name: plain(str(told[name])) for name in ("host", "software", "dial", "problem")}
                found.append(cls(**texts, shares=bool(told["shares"])))
        return found

    def check(self, name: str, port: int) -> None:
        """Raise an error where client processes could not work there.

        Parameters
        ----------
        name
            Name that the user knows the machine by.
        port
            Port that was tried.

        Raises
        ------
        SettingsError
            The machine has another version of Fenchel.
        UnreachableError
            It cannot reach the server.
        """
        if self.software != software():
            raise SettingsError(f"has {self.software}, and this machine {software()}; install one version", source=name)
        if self.problem:
            raise UnreachableError(
                f"cannot reach this machine at {self.dial or 'an unknown address'}, port {port}: {self.problem}; open "
                "a port in the firewall and name it (port), or name another address (dial)",
                source=name,
            )


@contextmanager
def marker(folder: Path) -> Iterator[Path]:
    """Make a file that shows whether other machines see a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "shared"
    file.touch()
    try:
        yield file
    finally:
        file.unlink()


def temporary_state(found: Mapping[str, Survey], required: Requirements) -> str | None:
    """Return a folder of each node for journals that no client needs again, or ``None``.

    It is ``None`` where all nodes see the folder of the journals.

    Parameters
    ----------
    found
        Surveys of the nodes, by the names that the user knows them by.

    Raises
    ------
    SettingsError
        A node does not see that folder, and clients need their journals wherever they are started again.
    """
    blind = [node for node, survey in found.items() if not survey.shares]
    if blind and not required.stateless:
        raise SettingsError(
            f"node {blind[0]} does not see {required.journals}, where clients keep their journals; put run folders on "
            "storage that all nodes share",
            key="--runs",
        )
    return f"/tmp/fenchel-{required.run}" if blind else None  # noqa: S108
