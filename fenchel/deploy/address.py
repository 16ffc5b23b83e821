"""Network addresses of the form ``HOST:PORT``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from fenchel.common.errors import SettingsError

# The parts of a name have 1 to 63 characters. Python's resolver raises errors of its own for others.
_PART = r"[A-Za-z0-9_-]{1,63}"
_ADDRESS = re.compile(
    rf"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>{_PART}(?:\.{_PART})*\.?)):(?P<port>[0-9]{{1,5}})", re.ASCII
)


def everywhere(dial: str) -> str:
    """Return the wildcard address to listen on: ``::`` if clients dial an IPv6 address, otherwise ``0.0.0.0``."""
    return "::" if ":" in dial else "0.0.0.0"  # noqa: S104


@dataclass(frozen=True)
class Address:
    """Address of a server, or address to listen on.

    Attributes
    ----------
    host
        A name or an IP address.
    port
        Port number. A server that listens on port 0 takes a free port.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, words: str, option: str) -> Self:
        """Parse ``HOST:PORT``, with an IPv6 address in brackets.

        Parameters
        ----------
        option
            Name of the option or argument, for errors.

        Raises
        ------
        SettingsError
            If the text is not of this form.
        """
        found = _ADDRESS.fullmatch(words)
        if found is None or int(found["port"]) > 65535:
            raise SettingsError(
                f"{words!r:.80} is not of the form HOST:PORT, such as 127.0.0.1:7444 or [::1]:7444", key=option
            )
        return cls(found["six"] or found["name"], int(found["port"]))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
