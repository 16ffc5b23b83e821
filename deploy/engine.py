"""Which of gRPC's two engines moves the bytes of a process."""

from __future__ import annotations

import os
from importlib.metadata import version

VARIABLE = "GRPC_EXPERIMENTS"
"""Environment variable that gRPC reads when it is imported."""

POLLED = "-event_engine_client,-event_engine_listener"
"""What has the thread that waits for a message read it from its socket."""

# Versions that have both names; others would complain of them on standard error.
_KNOWING = ("1.85.",)


def choose(installed: str | None = None) -> None:
    """Have sockets read and written by the thread that waits for them; to be called before gRPC is imported.

    By default gRPC for Python hands every read and write to threads of a pool of its own. With a few streams that carry
    large messages, as here, the hops to them and back take 10 to 20 % of a round (``docs/results/peers.md``). Whoever
    has set the variable decides himself, and versions of gRPC that may not know the names are left as they are.

    Parameters
    ----------
    installed
        gRPC's version; ``None``: that of this environment.
    """
    if (installed or version("grpcio")).startswith(_KNOWING):
        os.environ.setdefault(VARIABLE, POLLED)
