"""``HOST:PORT``, as people give it on the command line."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from fenchel.common.errors import SettingsError

_ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})", re.ASCII
)


def everywhere(dial: str) -> str:
    """Return the host for all addresses of this machine, of the family of the one that others dial."""
    return "::" if ":" in dial else "0.0.0.0"  # noqa: S104


@dataclass(frozen=True)
class Address:
    """Address of a server, or address to listen on.

    Attributes
    ----------
    host
        A name or an IP address.
    port
        Where to listen, 0 takes a free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, words: str, option: str) -> Self:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets."""
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
