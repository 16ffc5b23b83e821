"""What the accounting of time and bytes costs: the same rounds, with it and without it, in turn in one process.

A server and four clients exchange 1e6 floats over loopback, without TLS, as in ``round_trip``, with only the
accounting switched: stamps, alignment of clocks, counters of the sockets, and the rows of the tables.
Switched off, each of its functions is replaced by one that does nothing, and the median round is compared.
Rounds scatter by more than the accounting takes, so the time spent within the functions themselves is
measured, too: the limit of its share of the median round is 0.03, five times that with ``--quick``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import fenchel_echo
from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from benchmarks.rows import Rows
from fenchel.client.worker import _Handled
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.deployment import Deployment
from fenchel.fleet.client_record import ClientRecord
from fenchel.server.stream.connection_bytes import ConnectionBytes
from fenchel.server.telemetry import recorder, time_breakdown
from fenchel.server.telemetry.recorder import Recorder
from fenchel.server.telemetry.time_breakdown import RoundBreakdown

_CLIENTS, _FLOATS = 4, 1_000_000


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, and know nothing."""


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    """Run the server without its accounting. What clients stamp stays: it is five readings of a clock."""

    def split(*_: Any) -> RoundBreakdown:
        return RoundBreakdown()  # a Mock would keep all instructions, and with them their replies

    with (
        mock.patch.object(ClientRecord, "align", _nothing),
        mock.patch.object(ConnectionBytes, "charge", _nothing),
        mock.patch.object(Recorder, "calls", _nothing),
        mock.patch.object(recorder, "split", split),
    ):
        yield


@contextlib.contextmanager
def _timed(spent: list[float]) -> Iterator[None]:
    """Add up the seconds within the accounting's functions, of the server and of a client's stamp."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*words, **named)
            finally:
                spent[0] += time.perf_counter() - started

        return call

    with (
        mock.patch.object(ClientRecord, "align", timed(ClientRecord.align)),
        mock.patch.object(ConnectionBytes, "charge", timed(ConnectionBytes.charge)),
        mock.patch.object(Recorder, "calls", timed(Recorder.calls)),
        mock.patch.object(recorder, "split", timed(time_breakdown.split)),
        mock.patch.object(_Handled, "stamp", timed(_Handled.stamp)),
    ):
        yield


def _rounds(rounds: int) -> list[float]:
    """Return the seconds of each round but the first, with all bookkeeping."""
    rows = Rows()
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary), "instrumentation")
        settings = fenchel_echo.settings(_CLIENTS, _FLOATS, rounds + 1)
        deployment = Deployment(settings, folder, _CLIENTS, secure=False, observer=rows)
        asyncio.run(deployment.run())
    return [later - earlier for earlier, later in itertools.pairwise(rows.ends)]


def measure(quick: bool) -> Figures:
    """Measure with and without, in turn."""
    repeats, rounds = (2, 15) if quick else (6, 40)
    with_it: list[float] = []
    without: list[float] = []
    spent = [0.0]
    timed_rounds = 0
    for repeat in range(repeats):
        progress(f"{repeat + 1} of {repeats}")
        with _switched_off():
            without += _rounds(rounds)
        with_it += _rounds(rounds)
        with _timed(spent):
            timed_rounds += len(_rounds(rounds)) + 1
    median, bare = statistics.median(with_it), statistics.median(without)
    within = spent[0] / timed_rounds
    figures = {
        "clients": _CLIENTS,
        "floats": f"{_FLOATS:.0e}",
        "round ms": f"{1e3 * median:.2f}",
        "without ms": f"{1e3 * bare:.2f}",
        "accounting ms": f"{1e3 * within:.3f}",
    }
    limits = Limits(quick=quick)
    limits.at_most("share of a round", within / median, 0.03, timed=True)
    return {
        "rows": [figures],
        "limits": limits.verdicts,
        "share_of_a_round": round(within / median, 5),
        "longer_by": round(median / bare - 1, 4),
    }


if __name__ == "__main__":
    run(__doc__ or "", measure)
