"""A survey of another machine before client processes are started there."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.untrusted_text import plain
from fenchel.common.version import software

_PATIENCE = 5.0  # seconds for a connection


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

        dial: address of the server; by default the one that ssh comes from.
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
    def read(cls, line: str) -> Self:
        """Read what :meth:`line` wrote elsewhere; raise ``ValueError`` where it is nothing of the kind."""
        try:
            told = json.loads(line)
            texts = {name: plain(str(told[name])) for name in ("host", "software", "dial", "problem")}
            return cls(**texts, shares=bool(told["shares"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"expected a survey, got {line[:200]!r}") from None

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
