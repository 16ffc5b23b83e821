"""Timeline of the server and all clients on the server's clock, as Chrome trace events for Perfetto.

The format is Google's "Trace Event Format", which https://ui.perfetto.dev and chrome://tracing open. Each participant
is a process. The server has tracks for rounds, for checkpoints, and for the messages to and from each client. A
client has a track with the stages of each instruction. Arrows connect the two ends of each message.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from fenchel.common.errors import CheckpointError
from fenchel.common.storage.call_columns import CLIENT_STAGES, TAKING
from fenchel.report.columns import known
from fenchel.report.render.output import output_at
from fenchel.report.run import Run

Event: TypeAlias = dict[str, Any]
"""Trace event, with ``ts`` and ``dur`` in microseconds."""

_Row: TypeAlias = Mapping[str, Any]

_SERVER = 1
# numbers of the server's tracks for rounds, for checkpoints and for its first client
_ROUNDS, _CHECKPOINTS, _FIRST_CLIENT = 1, 2, 3
_HANDLING = 1  # number of a client's only track
_STAGES = tuple(stage for stage in CLIENT_STAGES if stage.column != "client_queue_s")


def events(run: Run) -> Iterator[Event]:
    """Yield the events of a run.

    The stages of an instruction appear in a fixed order: decode, decrypt, compute, encrypt, encode, journal. An
    algorithm may alternate between decrypting, computing and encrypting, but only the total of each is measured.

    Raises
    ------
    CheckpointError
        If the run has no instructions, or its tables come from a version that did not record the necessary times.
    """
    calls, metrics = run.calls_table, run.metrics_table
    if not calls.num_rows:
        raise CheckpointError(run.why_empty)
    if not {"arrived_s", "away_s"} <= {*calls.column_names} or "started_unix" not in metrics.column_names:
        raise CheckpointError(
            f"the tables of run {run.id} lack times that a trace needs (arrived_s, away_s or started_unix), because an "
            "earlier version of Fenchel wrote them; repeat the run with this version"
        )
    clients = sorted(set(calls["client"].to_pylist()))
    # Process numbers start with the server and continue in the order of client ids.
    line = _Line(_first_moment(run), {client: index for index, client in enumerate(clients, _SERVER + 1)})
    yield from line.names()
    for batch in metrics.to_batches():
        for row in batch.to_pylist():
            yield from line.round(row)
    for batch in calls.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield from line.call(row)


def write_trace(run: Run, path: Path) -> int:
    """Write the events of a run as JSON, compressed if the path ends in ``.gz``; return the number of events."""
    found = events(run)
    first = next(found)  # evaluated first, so that errors occur before the file is created
    with output_at(path), gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        number = 1
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n' + json.dumps(first, allow_nan=False))
        for event in found:
            file.write(",\n" + json.dumps(event, allow_nan=False))
            number += 1
        file.write("\n]}\n")
    return number


def _first_moment(run: Run) -> float:
    columns = [run.calls_table["queued_unix"]]
    columns += [run.metrics_table[name] for name in ("started_unix", "checkpoint_unix")]
    moments = [float(value) for column in columns for value in column.to_pylist()]
    return min(moment for moment in moments if math.isfinite(moment))


@dataclass
class _Line:
    """Converter of table rows into trace events.

    Attributes
    ----------
    zero
        Unix time of the start of the trace, in seconds.
    clients
        Process number of each client, by client id.
    """

    zero: float
    clients: Mapping[str, int]
    _flows: int = field(default=0)

    def names(self) -> Iterator[Event]:
        yield from _named(_SERVER, "server", {_ROUNDS: "rounds", _CHECKPOINTS: "checkpoints"})
        for client, process in self.clients.items():
            yield from _named(process, client, {_HANDLING: "instructions"})
            to, back = self._tracks(client)
            yield _thread(_SERVER, to, f"to {client}")
            yield _thread(_SERVER, back, f"from {client}")

    def round(self, row: _Row) -> Iterator[Event]:
        begun = self._at(row["started_unix"])
        ended = begun + row["seconds"]
        figures = {name: row[name] for name in ("counted", "late", "failed", "connected")}
        yield _slice(_SERVER, _ROUNDS, f"round {row['round']}", begun, ended, figures)
        if row["evaluation_s"] > 0:
            yield _slice(_SERVER, _ROUNDS, "evaluation", ended, ended + row["evaluation_s"])
        if math.isfinite(row["checkpoint_unix"]):
            saved = self._at(row["checkpoint_unix"])
            yield _slice(_SERVER, _CHECKPOINTS, "checkpoint", saved, saved + row["checkpoint_s"])

    def call(self, row: _Row) -> Iterator[Event]:
        """Yield the slices of one call: sent and received by the server, handled by the client."""
        queued = self._at(row["queued_unix"])
        there = queued + known(row["away_s"])
        sent = there + row["queue_s"]
        if not math.isfinite(sent):
            return  # the call still waits for a disconnected client
        to, back = self._tracks(row["client"])
        about = {name: row[name] for name in ("round", "sequence", "kind", "outcome")}
        if there > queued:
            yield from self._waiting(_SERVER, to, "client away", queued, there)
        yield from self._waiting(_SERVER, to, "queued on the server", there, sent)
        if math.isfinite(row["send_s"]):
            down = about | {"bytes": row["wire_down"]}
            yield _slice(_SERVER, to, row["phase"], sent, sent + row["send_s"], down)
        if not math.isfinite(row["total_s"]):
            return
        received = queued + row["total_s"] - known(row["decode_s"])
        first = received - row["receive_s"]
        reply = {"receive": row["receive_s"]}
        reply |= {name.removesuffix("_s"): known(row[name]) for name in ("decode_s", *TAKING)}
        taken = first + sum(reply.values())
        up = about | {"bytes": row["wire_up"]}
        yield _slice(_SERVER, back, row["phase"], first, taken, up)
        yield from _stages(_SERVER, back, first, taken, reply)
        if math.isfinite(row["arrived_s"]):
            yield from self._handled(row, queued, about)
            begun, replied = _handling(row, queued)
            process = self.clients[row["client"]]
            yield from self._arrow("instruction", (_SERVER, to, sent), (process, _HANDLING, begun))
            # The trace format requires an arrow to start within a slice, not at its end.
            leaving = max(begun, replied - 1e-6)
            yield from self._arrow("reply", (process, _HANDLING, leaving), (_SERVER, back, first))

    def _handled(self, row: _Row, queued: float, about: Event) -> Iterator[Event]:
        process = self.clients[row["client"]]
        begun, replied = _handling(row, queued)
        offset = {name: row[name] for name in ("clock_offset_s", "clock_error_s")}
        yield from self._waiting(process, _HANDLING, "queued", queued + row["arrived_s"], begun)
        yield _slice(process, _HANDLING, row["phase"], begun, replied, about | offset)
        durations = {stage.timing: row[stage.column] for stage in _STAGES}
        yield from _stages(process, _HANDLING, begun, replied, durations)

    def _waiting(self, process: int, track: int, name: str, begun: float, ended: float) -> Iterator[Event]:
        """Yield a waiting period as an asynchronous event with its own track, because such periods may overlap."""
        self._flows += 1
        place = {"cat": "queue", "name": name, "pid": process, "tid": track, "id": self._flows}
        yield place | {"ph": "b", "ts": _microseconds(begun)}
        yield place | {"ph": "e", "ts": _microseconds(max(ended, begun))}

    def _arrow(self, name: str, start: tuple[int, int, float], stop: tuple[int, int, float]) -> Iterator[Event]:
        """Yield an arrow between two slices, each given as its process, its track and a time within the slice."""
        self._flows += 1
        for phase, (process, track, moment) in (("s", start), ("f", stop)):
            place = {"cat": "message", "name": name, "pid": process, "tid": track, "id": self._flows}
            yield place | {"ph": phase, "ts": _microseconds(moment)} | ({"bp": "e"} if phase == "f" else {})

    def _at(self, unix: float) -> float:
        return unix - self.zero

    def _tracks(self, client: str) -> tuple[int, int]:
        """Return the numbers of the server's tracks for messages to and from a client."""
        place = _FIRST_CLIENT + 2 * (self.clients[client] - _SERVER - 1)
        return place, place + 1


def _handling(row: _Row, queued: float) -> tuple[float, float]:
    """Return the times at which a client began to handle an instruction and to send its reply."""
    replied = queued + row["replied_s"]
    # A stored reply is older than the repeated instruction that requests it.
    return min(queued + row["arrived_s"] + row["client_queue_s"], replied), replied


def _stages(process: int, track: int, begun: float, ended: float, durations: Mapping[str, float]) -> Iterator[Event]:
    """Yield the consecutive stages of positive duration within a slice."""
    for name, seconds in durations.items():
        stop = min(begun + seconds, ended)
        if seconds > 0 and stop > begun:
            yield _slice(process, track, name, begun, stop)
        begun = max(stop, begun)


def _slice(
    process: int, track: int, name: str, begun: float, ended: float, about: Mapping[str, Any] | None = None
) -> Event:
    start = _microseconds(begun)
    event = {"ph": "X", "pid": process, "tid": track, "name": name, "ts": start}
    # Compute the duration from rounded ends, so that rounding cannot extend a slice beyond its parent.
    event["dur"] = round(max(_microseconds(ended) - start, 0.0), 3)
    noted = {key: value for key, value in (about or {}).items() if not _is_unknown(value)}
    return event | ({"args": noted} if noted else {})


def _named(process: int, name: str, tracks: Mapping[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for track, title in tracks.items():
        yield _thread(process, track, title)


def _thread(process: int, track: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
