"""Choice of gRPC's event engine in a process."""

from __future__ import annotations

import os
from importlib.metadata import version

VARIABLE = "GRPC_EXPERIMENTS"
"""Environment variable that gRPC reads when it is imported."""

POLLED = "-event_engine_listener"
"""Value of the variable that disables the event engine's listener, so that a polling thread reads server sockets."""

# Versions of gRPC with this experiment; other versions would log a warning about an unknown name.
_KNOWING = ("1.85.",)


def choose(installed: str | None = None) -> None:
    """Configure gRPC, before its import, so that the polling thread of a server reads and writes sockets itself.

    Only Fenchel's own processes call this function. A program that imports ``fenchel`` makes its own choice.

    By default, gRPC for Python passes every read and write to a thread pool. With few streams and large messages, these
    thread switches take a tenth of a round (``docs/results/peers.md``). Clients keep the default, because they would
    benefit less, and the polling engine has used 0.6 GB of memory in a client with thousands of calls per second.

    An existing value of the variable has priority. Versions of gRPC without this experiment are not configured.

    Parameters
    ----------
    installed
        Version of gRPC; ``None`` for the installed version.
    """
    if (installed or version("grpcio")).startswith(_KNOWING):
        os.environ.setdefault(VARIABLE, POLLED)
