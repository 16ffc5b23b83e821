"""Two thousand clients in forty processes, of which a twentieth is killed again and again, and comes back.

SCAFFOLD, so that every client has state that a lost or repeated instruction would spoil; TLS; 50 rounds. At random
moments two of the processes, 100 clients, get SIGKILL and are started again. Measured: clients lost, replies missed,
the memory of the server's process over the rounds, its open files, and whether the model has the bits of a run in one
process that nobody disturbed. Limits: none lost, none missed, memory flat, files bounded by the number of clients.
``--quick`` takes 200 clients in 4 processes, of which one is killed at a time, and 20 rounds.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fenchel
from benchmarks.program import Figures, progress, run
from common.run_folder import RunFolder
from common.settings.run import RunSettings, validate
from deploy.inprocess import run_in_process
from deploy.local import LocalLauncher
from server import checkpoint as checkpoints
from server.coordinator import Observer
from server.rounds import Row

_RESTARTS = 3  # of deploy.local


def settings(clients: int, rounds: int) -> RunSettings:
    """Return the settings: every client takes two steps on its handful of samples."""
    return validate(
        {
            "name": "load",
            "rounds": rounds,
            "clients": clients,
            "data": {"name": "mammography", "scale": "standard", "bias": 1.0},
            "objective": {"kind": "logistic", "l2": 0.01},
            "algorithm": {"name": "scaffold", "local_steps": 2, "batch_size": None, "step_size": 0.1},
            "evaluation": {"every": rounds, "clients": False},
            "participation": {"deadline": 600.0},
        }
    )


@dataclass
class Server:
    """What this process, which is the server, holds at the end of each round."""

    rows: list[Row] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    process: psutil.Process = field(default_factory=psutil.Process)

    def note(self, row: Row) -> None:
        """Look at the process."""
        self.rows.append(row)
        self.megabytes.append(self.process.memory_info().rss / 1e6)
        self.files.append(self.process.num_fds())

    @property
    def growth(self) -> float:
        """Megabytes a round, by the median slope between any two rounds of the second half (Theil and Sen)."""
        half = self.megabytes[len(self.megabytes) // 2 :]
        slopes = [(half[j] - half[i]) / (j - i) for i in range(len(half)) for j in range(i + 1, len(half))]
        return statistics.median(slopes)


@dataclass
class Killer:
    """Kills processes of clients at random moments, some at a time, while the rounds go on."""

    server: Server
    at_once: int
    patience: float
    killed: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _fallen: Counter[str] = field(default_factory=Counter)

    def work(self) -> None:
        """Go on until :meth:`stop`."""
        chance = random.Random(5)
        while not self._over.wait(chance.uniform(0.5, 1.5) * self.patience):
            if not self.server.rows:
                continue  # the fleet is still gathering
            candidates = self._clients()
            for victim in chance.sample(candidates, min(self.at_once, len(candidates))):
                if (group := _group(victim)) is not None:
                    victim.send_signal(signal.SIGKILL)
                    self.killed += 1
                    self._fallen[group] += 1

    def stop(self) -> None:
        """Kill nobody any more."""
        self._over.set()

    def _clients(self) -> list[psutil.Process]:
        # The launcher takes a process that dies more often for one that cannot live.
        return [
            child
            for child in self.server.process.children()
            if (group := _group(child)) is not None and self._fallen[group] < _RESTARTS
        ]


def _group(process: psutil.Process) -> str | None:
    """Return the number of a process's first client, which stays when it is started again; of others ``None``."""
    try:
        words = process.cmdline()
    except psutil.Error:  # it has just ended
        return None
    return words[words.index("--first") + 1] if "--first" in words else None


def measure(quick: bool) -> Figures:
    """Do the run among kills, then the one without."""
    clients, processes, rounds, at_once = (200, 4, 20, 1) if quick else (2000, 40, 50, 2)
    server = Server()
    killer = Killer(server, at_once, patience=1.0 if quick else 10.0)
    progress(f"{clients} clients in {processes} processes")
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary), "load")
        chosen = settings(clients, rounds)
        launcher = LocalLauncher(
            chosen, folder, clients, processes=processes, observer=Observer(row=server.note)
        )
        killing = threading.Thread(target=killer.work, daemon=True)
        killing.start()
        started = time.perf_counter()
        asyncio.run(launcher.run())
        seconds = time.perf_counter() - started
        killer.stop()
        killing.join()
        lost = sum(bool(member["lost"]) for member in checkpoints.load(folder.checkpoint).members.values())
        model = fenchel.Run(folder.path).model
        progress(f"{killer.killed} processes were killed; the same run without kills")
        quiet = RunFolder.create(Path(temporary), "quiet")
        asyncio.run(run_in_process(chosen, quiet))
        same = np.array_equal(model, fenchel.Run(quiet.path).model)
    figures: dict[str, Any] = {
        "clients": clients,
        "processes killed": killer.killed,
        "clients killed": killer.killed * (clients // processes),
        "lost": lost,
        "missed": int(sum(row["asked"] - row["counted"] for row in server.rows)),
        "same bits": same,
        "median round s": round(statistics.median(row["seconds"] for row in server.rows), 2),
        "run s": round(seconds),
        "server MB, first half": round(statistics.median(server.megabytes[: rounds // 2])),
        "server MB, second half": round(statistics.median(server.megabytes[rounds // 2 :])),
        "MB a round, second half": round(server.growth, 3),
        "most open files": max(server.files),
    }
    return {"rows": [figures]}


if __name__ == "__main__":
    run(__doc__ or "", measure)
