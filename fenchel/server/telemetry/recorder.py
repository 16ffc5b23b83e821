"""The recorder of a run's tables: one row for each round, each instruction, and each client's figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fenchel.common.objectives.metrics import FIGURES
from fenchel.common.storage.round_columns import COUNTS, PARTS, SOCKETS, TIMES
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.tables import TableLog
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.telemetry.call_table import SCHEMA, row_of
from fenchel.server.telemetry.time_breakdown import split


def _socket_bytes(calls: Sequence[Call]) -> tuple[float, float]:
    """Return the sums of the socket bytes of calls, to and from clients; nan if none are known."""
    known = [call.socket_bytes for call in calls if call.socket_bytes is not None]
    if not known:
        return math.nan, math.nan
    return sum(each.down for each in known), sum(each.up for each in known)


@dataclass(frozen=True, slots=True)
class Ended:
    """Times at the end of a round, kept until the round is recorded.

    Attributes
    ----------
    unix, started_unix
        End and start of the round, in seconds since 1970.
    seconds, evaluation_seconds
        Durations of the round and of the evaluation after it, in seconds.
    saved_unix, saved_seconds
        Start (in seconds since 1970) and duration (in seconds) of the last checkpoint that was finished since the end
        of the previous round; nan: none was.
    """

    unix: float
    started_unix: float
    seconds: float
    evaluation_seconds: float
    saved_unix: float
    saved_seconds: float


@dataclass(kw_only=True)
class Recorder:
    """Recorder of the tables of a run.

    Attributes
    ----------
    folder
        Run folder.
    figures
        Names of the figures of a round besides those of the evaluation.
    kept_rounds
        Number of rounds of a resumed run whose rows are kept.
    on_calls
        Function that is called with the recorded instructions.
    client_figures
        Names of the algorithm's figures of each client. Without any, the run has no table of client figures.
    """

    folder: RunFolder
    figures: tuple[str, ...]
    kept_rounds: int = 0
    on_calls: Callable[[Sequence[Call]], None] = lambda calls: None
    client_figures: tuple[str, ...] = ()
    _rounds: list[tuple[Any, ...]] = field(default_factory=list)
    _calls: list[tuple[Any, ...]] = field(default_factory=list)
    _clients: list[tuple[Any, ...]] = field(default_factory=list)
    _clients_log: TableLog | None = None
    _saved: tuple[float, float] = (math.nan, math.nan)

    def __post_init__(self) -> None:
        fields = [(name, pa.int64()) for name in COUNTS]
        fields += [(name, pa.float64()) for name in (*SOCKETS, *TIMES, *FIGURES, *self.figures)]
        self._columns = [name for name, _ in fields]
        self._metrics_log = TableLog(self.folder.metrics, pa.schema(fields), self.kept_rounds)
        self._calls_log = TableLog(self.folder.calls, SCHEMA, self.kept_rounds)
        if self.client_figures:
            fields = [("round", pa.int32()), ("client", pa.string())]
            fields += [(name, pa.float64()) for name in self.client_figures]
            self._clients_log = TableLog(self.folder.clients, pa.schema(fields), self.kept_rounds)

    def ended(self, started: float, seconds: float, evaluation_seconds: float) -> Ended:
        """Return the times of a round that ends now, with those of the last checkpoint since the previous round.

        Parameters
        ----------
        started
            Start of the round, in seconds of the performance counter.
        seconds, evaluation_seconds
            Durations of the round and of the evaluation after it, in seconds.
        """
        now, saved = time.time(), self._saved
        self._saved = math.nan, math.nan
        return Ended(now, now - (time.perf_counter() - started), seconds, evaluation_seconds, *saved)

    def round(
        self, t: int, started: float, ended: Ended, calls: Sequence[Call], connected: int, figures: Mapping[str, float]
    ) -> dict[str, float]:
        """Record a round and its instructions, and return the row of the round.

        Parameters
        ----------
        t
            Number of the round.
        started
            Start of the round, in seconds of the performance counter.
        ended
            Result of :meth:`ended` at the end of the round.
        calls
            All instructions since the last row: those of the round, its evaluation and, before the first round, the
            setup. Only those of the round itself enter the row.
        connected
            Number of connected clients.
        figures
            Figures of the round, by name.
        """
        self.calls(calls)
        own = [call for call in calls if call.kind != pb.INSPECT and call.round == t]
        started_ns = round(started * 1e9)
        found = split(started_ns, started_ns + round(ended.seconds * 1e9), own)
        parts = found.parts
        row = {
            "round": t,
            "asked": sum(call.kind == pb.ASK for call in own),
            **{outcome: sum(call.outcome == outcome for call in own) for outcome in ("counted", "late", "failed")},
            "connected": connected,
            "bytes_down": sum(call.body_bytes for call in own),
            "bytes_up": sum(call.reply_bytes for call in own),
            "wire_down": sum(call.wire_down for call in own),
            "wire_up": sum(call.wire_up for call in own),
            **dict(zip(SOCKETS, _socket_bytes(own), strict=True)),
            "seconds": ended.seconds,
            **{f"{part}_s": getattr(parts, part) for part in PARTS},
            "unaccounted_s": ended.seconds - parts.total,
            "serialisation_s": parts.serialisation,
            "propagation_s": parts.propagation,
            "idle_s": found.idle,
            "evaluation_s": ended.evaluation_seconds,
            "checkpoint_s": ended.saved_seconds,
            "started_unix": ended.started_unix,
            "checkpoint_unix": ended.saved_unix,
            "unix": ended.unix,
            **figures,
        }
        self._rounds.append(tuple(row.get(name, math.nan) for name in self._columns))
        return row

    def saved(self, seconds: float) -> None:
        """Record a checkpoint that took ``seconds`` and was finished just now, in the row of the current round."""
        self._saved = time.time() - seconds, seconds

    def calls(self, calls: Sequence[Call]) -> None:
        """Record instructions, and pass them to ``on_calls``."""
        for call in calls:
            self._calls.append(row_of(call))
            call.mark_recorded()
        self.on_calls(calls)

    def clients(self, t: int, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Record the algorithm's figures of each client after round ``t``."""
        self._clients += [
            (t, client, *(own.get(name, math.nan) for name in self.client_figures)) for client, own in figures.items()
        ]

    def flush(self) -> None:
        """Write the recorded rows. May run in another thread than :meth:`round`, but not at the same time."""
        rounds, self._rounds = self._rounds, []
        calls, self._calls = self._calls, []
        self._metrics_log.append(rounds)
        self._calls_log.append(calls)
        if self._clients_log is not None:
            clients, self._clients = self._clients, []
            self._clients_log.append(clients)

    def finish(self, figures: Mapping[str, float]) -> None:
        """Write the remaining rows, and convert the tables to Parquet files.

        Parameters
        ----------
        figures
            Figures of the final model, which an algorithm may change after the last round. They enter the last row.
        """
        self.flush()
        self._metrics_log.finish({name: figures[name] for name in (*FIGURES, *self.figures) if name in figures})
        self._calls_log.finish()
        if self._clients_log is not None:
            self._clients_log.finish()

    def close(self) -> None:
        """Write the remaining rows, and leave the tables for a resumed run."""
        self.flush()
        self._metrics_log.close()
        self._calls_log.close()
        if self._clients_log is not None:
            self._clients_log.close()
