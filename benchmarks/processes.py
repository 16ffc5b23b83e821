"""Runs ``fenchel up`` as a user does, and watches the memory of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import psutil

import fenchel
from fenchel.common.arrays import Vector

_POLL_SECONDS = 0.02
_CLIENT_WORK = {
    "encrypt_s": "encryption",
    "decrypt_s": "decryption",
    "compute_s": "compute",
    "journal_s": "journals",
    "client_decode_s": "reading messages",
    "client_encode_s": "writing messages",
}


@dataclass(frozen=True)
class Watched:
    """A finished run, and the most memory that its processes had."""

    run: fenchel.Run  # the run
    server: int  # peak resident memory of the server's process, in bytes
    clients: tuple[int, ...]  # the same of each process of clients
    seconds: float  # from the command to its end: with keys, certificates, loading of data and set-up

    def column(self, name: str) -> Vector:
        """Return a figure of each round."""
        column: Vector = self.run.metrics_table[name].to_numpy()
        return column

    def work(self) -> dict[str, float]:
        """Return seconds of all clients together in a round, by what they did; evaluation is not among it."""
        calls, rounds = self.run.calls_table, self.run.metrics_table.num_rows
        numbers = calls["round"].to_numpy()
        inside = (numbers >= 1) & (numbers <= rounds)
        return {
            what: float(np.nansum(calls[column].to_numpy()[inside])) / rounds for column, what in _CLIENT_WORK.items()
        }


def up(
    settings: str,
    overrides: Sequence[str],
    *,
    processes: int,
    runs: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Watched:
    """Do a run in processes of its own.

    runs: folder in which the run folder is created; nothing else may be in it. It must outlive the result.
    environment: variables for the processes, beside those of this one.
    """
    command = [sys.executable, "-m", "fenchel", "up", settings, "--runs", str(runs)]
    command += ["--processes", str(processes)]
    for override in overrides:
        command += ["--set", override]
    peaks: dict[int, int] = {}
    of_clients: set[int] = set()
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as words:
        server = subprocess.Popen(command, stdout=words, stderr=words, env={**os.environ, **environment})
        while server.poll() is None:
            _look(server.pid, peaks, of_clients)
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - started
        if server.returncode:
            words.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{words.read()[-3000:]}")
    (folder,) = runs.iterdir()
    clients = tuple(peaks[process] for process in sorted(of_clients))
    return Watched(fenchel.Run(folder), peaks[server.pid], clients, seconds)


def _look(server: int, peaks: dict[int, int], of_clients: set[int]) -> None:
    try:
        tree = [psutil.Process(server)]
        forks = [fork for child in tree[0].children() for fork in child.children()]  # of the fork server
        of_clients.update(fork.pid for fork in forks)
        for process in tree + forks:
            peaks[process.pid] = max(peaks.get(process.pid, 0), process.memory_info().rss)
    except psutil.Error:  # a process has ended meanwhile
        return
