"""Choice of gRPC's event engine in a process."""

from __future__ import annotations

import os
from importlib.metadata import version

VARIABLE = "GRPC_EXPERIMENTS"
"""Environment variable that gRPC reads when it is imported."""

POLLED = "-event_engine_listener"
"""Setting with which a server thread that waits for messages reads sockets itself."""

# Versions of gRPC with this experiment; other versions would log a warning about an unknown name.
_KNOWING = ("1.85.",)


def choose(installed: str | None = None) -> None:
    """Have a server's sockets read and written by the thread that waits for them; before gRPC is imported.

    For processes that are Fenchel's own. A program that imports ``fenchel`` chooses for itself.

    By default gRPC for Python hands every read and write to threads of a pool of its own. With a few streams
    that carry large messages, as here, the hops to them and back take a tenth of a round
    (``docs/results/peers.md``). Clients would gain less, and where one makes thousands of calls a second that
    engine has been seen to take 0.6 GB. An existing value of the variable is left unchanged, as are versions
    of gRPC that may not know the name.

    Parameters
    ----------
    installed
        gRPC's version; ``None``: that of this environment.
    """
    if (installed or version("grpcio")).startswith(_KNOWING):
        os.environ.setdefault(VARIABLE, POLLED)
