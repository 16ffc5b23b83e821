"""How many rounds a run keeps in memory, to be written if it has to wait, and what the copies cost.

In one process, with clients that return what they get: no computation and no network, so rounds are as short
as they can be, and the fewest are kept. No regular checkpoint is due. Measured of each round: the processor's
time of the copy, where one was made; of the run: the share of its time that the copies took, and the longest
time from one round that was kept to the next, whose rounds a server that is killed while it waits does again.
The limit of the share is 0.01 for all copies but the largest, as the time after the last one may be over
before it has paid for it; five times as much with ``--quick``.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import fenchel_echo
from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server.checkpointer import Checkpointer
from fenchel.server.telemetry.observer import Observer

_RUNS = ((1_000, 3, 600), (1_000_000, 3, 60), (1_000_000, 10, 60))  # floats, clients, rounds
_QUICK = ((1_000, 3, 200), (100_000, 3, 60))


@dataclass
class Kept(Observer):
    """What a run kept."""

    copies: list[float] = field(default_factory=list)  # seconds of the processor for each round that was kept
    moments: list[float] = field(default_factory=list)  # when it was kept, by the performance counter
    ends: list[float] = field(default_factory=list)  # when each round ended, by the clock

    def round_ended(self, row: Row) -> None:
        """Note the end of a round."""
        self.ends.append(row["unix"])


def _settings(clients: int, floats: int, rounds: int) -> RunSettings:
    """Return the settings of an echo that is never saved between its beginning and its end."""
    echo = fenchel_echo.settings(clients, floats, rounds)
    never = echo.checkpoint.model_copy(update={"every": rounds + 1})
    return echo.model_copy(update={"checkpoint": never})


def _run(clients: int, floats: int, rounds: int) -> Kept:
    """Do the rounds; return what was kept of them."""
    kept = Kept()
    keep = Checkpointer.snapshot

    def timed(self: Checkpointer, done: int, state: Any) -> None:
        began = time.thread_time()
        keep(self, done, state)
        if self.last_saved_or_kept == done:
            kept.copies.append(time.thread_time() - began)
            kept.moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as temporary, mock.patch.object(Checkpointer, "snapshot", timed):
        folder = RunFolder.create(Path(temporary), "kept-rounds")
        asyncio.run(run_in_process(_settings(clients, floats, rounds), folder, observer=kept))
    return kept


def _row(clients: int, floats: int, rounds: int, limits: Limits) -> dict[str, Any]:
    kept = _run(clients, floats, rounds)
    lasting = kept.ends[-1] - kept.ends[0]
    but_one = sum(kept.copies) - max(kept.copies)
    limits.at_most(f"share, {floats:,} floats, {clients} clients", but_one / lasting, 0.01, timed=True)
    lasted = [later - earlier for earlier, later in zip(kept.ends, kept.ends[1:], strict=False)]
    apart = [later - earlier for earlier, later in zip(kept.moments, kept.moments[1:], strict=False)]
    return {
        "floats": f"{floats:,}",
        "clients": clients,
        "a copy, ms": f"{1e3 * statistics.median(kept.copies):.2f}",
        "median round, ms": f"{1e3 * statistics.median(lasted):.1f}",
        "rounds kept": f"{len(kept.copies)} of {rounds}",
        "share of the time": f"{sum(kept.copies) / lasting:.4f}",
        "longest between two, s": f"{max(apart):.2f}",
    }


def measure(quick: bool) -> Figures:
    """Do the runs, one after the other."""
    rows = []
    limits = Limits(quick=quick)
    for floats, clients, rounds in _QUICK if quick else _RUNS:
        progress(f"{floats:,} floats, {clients} clients")
        rows.append(_row(clients, floats, rounds, limits))
    return {"rows": rows, "limits": limits.verdicts}


if __name__ == "__main__":
    run(__doc__ or "", measure)
