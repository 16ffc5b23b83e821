"""Limit of open files of the server's process, and the number of file descriptors left for connections.

Every connection takes a file descriptor, even an idle connection from an unknown caller. So some descriptors are
reserved for the run.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from pathlib import Path

from fenchel.common.errors import SettingsError

RESERVED = 128
"""Number of file descriptors reserved for the run's files, its dashboard and metrics with their readers, and gRPC."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit.

    Only Fenchel's own processes call this function. A program that imports ``fenchel`` keeps its limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # some systems refuse to raise the soft limit to the reported hard limit
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def largest_number() -> int:
    """Return the soft limit of open files of this process; ``sys.maxsize`` if there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def connections(wanted: int, clients: int, host: str, files: int | None = None) -> int:
    """Return the number of connections to allow for each address that the server listens on.

    Parameters
    ----------
    wanted
        Number of connections to allow if the limit of open files permits.
    clients
        Number of connections that the run needs, one for each client.
    host
        Host that the server listens on. A name such as ``localhost`` may stand for several addresses.
    files
        Limit of open files; ``None``: the soft limit of this process.

    Raises
    ------
    SettingsError
        If the limit leaves too few file descriptors for the clients' connections.
    """
    files = largest_number() if files is None else files
    taken = sum(1 for _ in Path("/dev/fd").iterdir())
    most = min(wanted, files - taken - RESERVED) // _addresses(host)
    if most < clients:
        raise SettingsError(
            f"{clients:,} clients need as many connections, but the server can hold {max(most, 0):,}: of {files:,} "
            f"file descriptors {taken:,} are in use, and {RESERVED} are reserved for the run. The server does not "
            "start. Raise the limit (ulimit -n, in a container --ulimit nofile=N), or use fewer clients",
            key="clients",
        )
    return most


def _addresses(host: str) -> int:
    """Return the number of addresses of a host name, because gRPC limits the connections of each address separately."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:  # ignored, because gRPC reports the error on listening
        return 1
    return len({place[:1] for *_, place in found}) or 1
