"""The peer: a bare asyncio gRPC streaming echo of the same bytes, without any of Fenchel.

Frames of the same size, as raw bytes, on one stream for each client; as many client processes and clients in
each as Fenchel is given. It has processes of its own, in which gRPC is as it comes, with the engine that it
chooses itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fenchel.deploy.launch import grpc_engine


def measure(clients: int, processes: int, size: int, rounds: int, certificates: Path | None = None) -> list[float]:
    """Return the seconds of each round.

    size: bytes down and up each stream in a round.
    certificates: for TLS: folder of a server's and a client's certificates; ``None``: without.
    """
    numbers = map(str, (clients, processes, size, rounds))
    command = [sys.executable, "-m", "benchmarks.bare_echo_processes", "server", *numbers]
    environment = dict(os.environ)
    if environment.get(grpc_engine.VARIABLE) == grpc_engine.POLLED:
        del environment[grpc_engine.VARIABLE]
    done = subprocess.run(
        [*command, str(certificates or "")], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds
