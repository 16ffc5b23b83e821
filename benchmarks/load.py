"""Two thousand clients in forty processes, of which a twentieth is killed again and again, and comes back.

SCAFFOLD, so that every client has state that a lost or repeated instruction would spoil; TLS; 50 rounds. At random
moments two of the processes, 100 clients, get SIGKILL and are started again. Measured: clients lost, replies
missed, the memory of the server's process over the rounds, its open files, and whether the model has the bits
of a run in one process that nobody disturbed. ``--clients``, ``--processes`` and ``--rounds`` choose another
size, ``--at-once 0`` a run without kills. ``--quick`` takes 200 clients in 4 processes, of which one is
killed at a time, and 20 rounds.

Limits, without which the program ends with code 1:

* none lost, none missed, the same bits;
* at most two open files for each client, since it may come back before its old connection is known to be dead, and
  200 more;
* flat memory, from the second quarter of the rounds to the last: at most a twentieth more by the median. It is not
  flat to the byte, as rows of tables wait in it for the next checkpoint, and in the first quarter it still grows;
* and no more Python objects, which tell of smaller leaks than memory does: half a one for each client that came back,
  one for each client, and sixty for each client that is away at a time, whose stream is there at one moment and not at
  another. A stream that is kept for ever has about five, an instruction four.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil

from benchmarks import as_served  # noqa: F401 - before gRPC is imported
from benchmarks.program import Figures, allow_many_sockets, flags, progress, tell
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report.run import Run
from fenchel.server import checkpoint as checkpoints
from fenchel.server.telemetry.observer import Observer

_FEW = 200  # clients, for 569 samples
_GROWTH = 0.05  # of memory, from the second quarter of the rounds to the last
_FEWEST_ROUNDS = 8
_LOOKS = 16  # times that objects are counted in a run
_OF_A_STREAM = 60  # objects of an open stream, of which at any moment some are there and others not
_OF_WHO_CAME_BACK = 0.5  # objects for each client that was killed
_OWN_FILES = 200  # of the server, beside those of its clients: libraries, tables, data, pipes


@dataclass(frozen=True)
class Plan:
    """How large a run is, and what is done to it."""

    clients: int  # clients, processes, rounds: how many
    processes: int
    rounds: int
    at_once: int  # processes that are killed at a time; 0: nobody is killed
    pause: float  # seconds from one time to the next, about. At least one round is done between.


FULL = Plan(clients=2000, processes=40, rounds=50, at_once=2, pause=10.0)
QUICK = Plan(clients=200, processes=4, rounds=20, at_once=1, pause=1.0)


@dataclass(frozen=True)
class Load:
    """What a run came to."""

    clients: int  # clients, lost, missed: clients, those that were lost, and replies that did not count
    away: int  # clients that are killed at a time
    lost: int
    missed: int
    killed: int  # times that a client was killed, with the process that hosts it
    same_bits: bool  # whether the model is that of an undisturbed run
    megabytes: Sequence[float]  # memory of the server's process after each round
    objects: Sequence[int]  # python objects in it, as often in each quarter of the rounds
    files: int  # the most files that it had open

    def quarters(self) -> list[float]:
        """Return the median memory in each quarter of the rounds."""
        return [statistics.median(quarter) for quarter in _quarters(self.megabytes)]

    def growth(self) -> float:
        """Return by which part memory grew from the second quarter to the last."""
        _, second, _, last = self.quarters()
        return last / second - 1

    def more_objects(self) -> int:
        """Return how many more objects there were in the last quarter than in the second, at most each."""
        _, second, _, last = _quarters(self.objects)
        return int(max(last) - max(second))  # at other moments clients are away

    def exceeded(self) -> list[str]:
        """Return in words which limits were not kept."""
        most = 2 * self.clients + _OWN_FILES
        more = round(self.clients + _OF_A_STREAM * self.away + _OF_WHO_CAME_BACK * self.killed)
        limits = {
            f"{self.lost} clients were lost": self.lost == 0,
            f"{self.missed} replies were missed": self.missed == 0,
            "the model has other bits than without kills": self.same_bits,
            f"{self.files} files were open, of {most} at most": self.files <= most,
            f"memory grew by {self.growth():.1%} from the second quarter to the last, of {_GROWTH:.0%} at most": (
                self.growth() <= _GROWTH
            ),
            f"{self.more_objects()} objects more in the last quarter than in the second, of {more} at most": (
                self.more_objects() <= more
            ),
        }
        return [words for words, kept in limits.items() if not kept]


def _quarters(values: Sequence[float]) -> list[Sequence[float]]:
    bounds = [len(values) * i // 4 for i in range(5)]
    return [values[start:stop] for start, stop in itertools.pairwise(bounds)]


def settings(clients: int, rounds: int) -> RunSettings:
    """Return the settings: every client takes two steps on its handful of samples."""
    return validate(
        {
            "name": "load",
            "rounds": rounds,
            "clients": clients,
            "data": {"name": _data(clients), "scale": "standard", "bias": 1.0},
            "objective": {"kind": "logistic", "l2": 0.01},
            "algorithm": {"name": "scaffold", "local_steps": 2, "batch_size": None, "step_size": 0.1},
            "evaluation": {"every": rounds, "clients": False},
            "participation": {"deadline": 600.0},
        }
    )


def _data(clients: int) -> str:
    """Return what gives each client a handful of samples: an installed set, if it is enough."""
    return "breast_cancer" if clients <= _FEW else "mammography"


@dataclass
class Server(Observer):
    """What this process, which is the server, holds at the end of each round."""

    every: int
    """Rounds from one count of objects to the next."""
    seconds: list[float] = field(default_factory=list)
    missed: int = 0
    megabytes: list[float] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    process: psutil.Process = field(default_factory=psutil.Process)

    def round_ended(self, row: Row) -> None:
        """Look at the process."""
        self.seconds.append(row["seconds"])  # to hold on to rows would be a growth of its own
        self.missed += int(row["asked"] - row["counted"])
        self.megabytes.append(self.process.memory_info().rss / 1e6)
        self.files.append(self.process.num_fds())
        if len(self.seconds) % self.every == 0:
            gc.collect()
            self.objects.append(len(gc.get_objects()))


@dataclass
class Killer:
    """Kills processes of clients at random moments, some at a time, while the rounds go on."""

    server: Server
    at_once: int
    pause: float
    killed: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        """Go on until :meth:`stop`."""
        chance = random.Random(5)
        seen = 0  # rounds; before the first one the fleet is still gathering
        while not self._over.wait(chance.uniform(0.5, 1.5) * self.pause):
            if len(self.server.seconds) == seen:
                continue  # else a slow machine would see nothing but kills
            seen = len(self.server.seconds)
            candidates = [fork for child in self.server.process.children() for fork in child.children()]
            for victim in chance.sample(candidates, min(self.at_once, len(candidates))):
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGKILL)  # the launcher waits for it, and starts it again
                    self.killed += 1

    def stop(self) -> None:
        """Kill nobody any more."""
        self._over.set()


def carry(plan: Plan) -> tuple[Load, Figures]:
    """Do the run among kills, then the one without; return what it came to, and what is printed of it."""
    server = Server(every=max(plan.rounds // _LOOKS, 1))
    killer = Killer(server, plan.at_once, plan.pause)
    progress(f"{plan.clients} clients in {plan.processes} processes, {plan.rounds} rounds")
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary), "load")
        chosen = settings(plan.clients, plan.rounds)
        deployment = Deployment(
            chosen,
            folder,
            plan.clients,
            processes=plan.processes,
            restarts=sys.maxsize,  # by default one that is killed a fourth time is taken for one that cannot live
            observer=server,
        )
        killing = threading.Thread(target=killer.work, daemon=True)
        if plan.at_once:
            killing.start()
        started = time.perf_counter()
        asyncio.run(deployment.run())
        seconds = time.perf_counter() - started
        if plan.at_once:
            killer.stop()
            killing.join()
        lost = sum(bool(member["lost"]) for member in checkpoints.load(folder.checkpoint).members.values())
        model = Run(folder.path).model
        progress(f"{killer.killed} processes were killed; the same run without kills, in one process")
        quiet = RunFolder.create(Path(temporary), "quiet")
        asyncio.run(run_in_process(chosen, quiet))
        same = np.array_equal(model, Run(quiet.path).model)
    load = Load(
        clients=plan.clients,
        away=plan.at_once * plan.clients // plan.processes,
        lost=lost,
        missed=server.missed,
        killed=killer.killed * plan.clients // plan.processes,
        same_bits=bool(same),
        megabytes=server.megabytes,
        objects=server.objects,
        files=max(server.files),
    )
    row = {
        "clients": load.clients,
        "rounds": plan.rounds,
        "processes killed": killer.killed,
        "clients killed": load.killed,
        "lost": load.lost,
        "missed": load.missed,
        "same bits": load.same_bits,
        "median round s": round(statistics.median(server.seconds), 2),
        "run s": round(seconds),
        "server MB by quarter": " ".join(f"{quarter:.1f}" for quarter in load.quarters()),
        "growth": f"{load.growth():.1%}",
        "more objects": load.more_objects(),
        "most open files": load.files,
    }
    return load, {"rows": [row]}


def _plan(words: argparse.Namespace) -> Plan:
    """Return the plan that the command line asks for."""
    base = QUICK if words.quick else FULL
    chosen = {name: value for name in vars(base) if (value := getattr(words, name)) is not None}
    return replace(base, **chosen)


def main() -> None:
    """Measure, print, and end with code 1 where a limit was not kept."""
    parser = flags(__doc__, "a small run")
    for name in ("clients", "processes", "rounds"):
        parser.add_argument(f"--{name}", type=int, help=f"number of {name}")
    parser.add_argument("--at-once", type=int, help="processes killed at a time; 0: nobody is killed")
    parser.add_argument("--pause", type=float, help="seconds from one time to the next, about")
    words = parser.parse_args()
    plan = _plan(words)
    if plan.rounds < _FEWEST_ROUNDS:
        parser.error(f"--rounds {plan.rounds}: at least {_FEWEST_ROUNDS}, of which quarters are compared")
    allow_many_sockets()
    load, figures = carry(plan)
    tell(figures, as_json=words.json)
    if plan.at_once and not load.killed:
        raise SystemExit("nobody was killed before the run was over: take more --rounds, or a shorter --pause")
    if exceeded := load.exceeded():
        raise SystemExit("\n".join(exceeded))


if __name__ == "__main__":
    main()
