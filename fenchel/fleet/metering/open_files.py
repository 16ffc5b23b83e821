"""Open files of the server's process: how many there may be, and how many of them connections may take.

Every connection takes one, also that of a stranger who says nothing. So a part is kept for the run.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from pathlib import Path

from fenchel.common.errors import SettingsError

RESERVED = 128
"""Files kept for the run: checkpoint, tables, log, live page and metrics with their readers, and gRPC's own."""


def raise_limit() -> None:
    """Let this process have as many files open as it may without further rights.

    For processes that are Fenchel's own. A program that imports ``fenchel`` chooses for itself.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems have a limit below the one that they name
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def largest_number() -> int:
    """Return how many files this process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def connections(wanted: int, clients: int, host: str, files: int | None = None) -> int:
    """Return how many connections each address that the server listens on may have.

    Parameters
    ----------
    wanted
        How many there may be if files do not matter.
    clients
        How many clients the run has at least, each with a connection.
    host
        What the server listens on. A name such as ``localhost`` may stand for several addresses.
    files
        How many files this process may have open; ``None``: as the system says.

    Raises
    ------
    SettingsError
        There are too few files for the clients.
    """
    files = largest_number() if files is None else files
    taken = sum(1 for _ in Path("/dev/fd").iterdir())
    most = min(wanted, files - taken - RESERVED) // _addresses(host)
    if most < clients:
        raise SettingsError(
            f"{clients:,} clients need as many connections, but the server can hold {max(most, 0):,}: its process may "
            f"have {files:,} files open, of which {taken:,} are open already and {RESERVED} are kept for the run. It "
            "does not start. Allow more files (ulimit -n, in a container --ulimit nofile=N), or have fewer clients",
            key="clients",
        )
    return most


def _addresses(host: str) -> int:
    """Return for how many addresses a name stands; gRPC counts the connections of each apart."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:  # gRPC says that it cannot listen there
        return 1
    return len({place[:1] for *_, place in found}) or 1
