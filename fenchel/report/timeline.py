"""Timeline of a run, rebuilt from its tables: order, dependencies and durations of instructions.

Durations are measured, and exclude everything that depends on the network: the transmission of messages, and the wait
of an instruction for an earlier one of the same client (:mod:`fenchel.report.projection.projection` computes both). The
wait for clients to reconnect to a restarted server is excluded, too (:mod:`fenchel.report.resumption`). Other absences
of clients are included, as they do not depend on the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from fenchel.common.errors import CheckpointError
from fenchel.common.storage.call_columns import CLIENT_STAGES, TAKING, columns_of
from fenchel.common.storage.run_folder import IN_ONE_PROCESS, RunFolder
from fenchel.report import columns
from fenchel.report.columns import Floats
from fenchel.report.run import Run, logged

_CALLS = (
    *("round", "phase", "kind", "client", "outcome", "queued_unix", "wire_down", "wire_up"),
    *("away_s", "queue_s", "broken_s", "network_s", "total_s", *(stage.column for stage in CLIENT_STAGES)),
    *("decode_s", *TAKING, "waiting_s", "arrived_s", "replied_s"),
)
_SLACK = 1e-3  # tolerance in seconds for the order of two of the server's timestamps
_METRICS = ("round", "seconds", "evaluation_s", "started_unix")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction to one client, and its reply.

    Attributes
    ----------
    client
        Client id.
    queued
        Time of queueing in seconds, with the origin of :class:`Segment`.
    down, up
        Bytes of the frames of both messages; 0 for a reply that never came.
    away
        Seconds for which the client was not connected.
    server_queue
        Seconds from queueing, or from the client's connection, until the server began to send.
    client_queue
        Seconds on the client from arrival, and the end of the previous instruction, until handling began.
    compute, encryption, coding
        Seconds of the client's work. Coding includes the journal.
    other
        Seconds of the client that no other part accounts for, including the handover of the reply.
    decode, take
        Seconds of the server for decoding and using the reply.
    answered
        True if the server received a reply in time, possibly a failure.
    """

    client: str
    queued: float
    down: float
    up: float
    away: float
    server_queue: float
    client_queue: float
    compute: float
    encryption: float
    coding: float
    other: float
    decode: float
    take: float
    answered: bool


@dataclass(frozen=True)
class Step:
    """One request to several clients.

    Attributes
    ----------
    phase, kind
        Phase and kind as in ``calls.parquet``.
    instructions
        Instructions in the order of queueing.
    ended
        Time at which the server continued, in seconds, with the origin of :class:`Segment`. For a ``tell``, the time
        at which all instructions were queued.
    rest
        Seconds from the last reply until ``ended``.
    overdue
        True if any client did not answer in time, so that a deadline may have ended the request.
    """

    phase: str
    kind: str
    instructions: tuple[Instruction, ...]
    ended: float
    rest: float
    overdue: bool

    @property
    def started(self) -> float:
        """Time at which the first instruction was queued."""
        return self.instructions[0].queued

    @property
    def is_awaited(self) -> bool:
        """True if the server waited for replies."""
        return self.kind != "tell"

    @cached_property
    def clients(self) -> frozenset[str]:
        """Ids of the clients that received an instruction."""
        return frozenset(each.client for each in self.instructions)

    def follows(self, earlier: Step) -> bool:
        """Return True if this request began after the server had waited for the end of an earlier one.

        This is certain if both have a client in common, as a client has at most one open request. Otherwise timestamps
        decide.
        """
        if not earlier.is_awaited:
            return False
        asked_again = self.is_awaited and not self.clients.isdisjoint(earlier.clients)
        return asked_again or earlier.ended <= self.started + _SLACK


@dataclass(frozen=True)
class Segment:
    """Part of a run: a round, its evaluation, or the setup.

    Attributes
    ----------
    started, ended
        Times in seconds since the run's first instruction or the start of its first round, whichever is earlier.
    steps
        Requests in the order of their starts.
    """

    started: float
    ended: float
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Timeline:
    """Timeline of a run.

    Attributes
    ----------
    run
        The run.
    setup
        Part before the first round.
    rounds, evaluations
        Each round, and the evaluation after it.
    overdue
        Number of instructions that were not answered in time.
    """

    run: Run
    setup: Segment
    rounds: tuple[Segment, ...]
    evaluations: tuple[Segment, ...]
    overdue: int

    @property
    def largest_message(self) -> float:
        """Size in bytes of the largest instruction or reply in rounds and evaluations."""
        segments = (*self.rounds, *self.evaluations)
        each = (one for segment in segments for step in segment.steps for one in step.instructions)
        return max((max(one.down, one.up) for one in each), default=0.0)

    @classmethod
    def of(cls, run: Run) -> Timeline:
        """Rebuild the timeline of a run from its tables.

        Raises
        ------
        CheckpointError
            If the run has no rounds or instructions, its tables come from an older version, or it ran in one process.
        """
        calls, metrics = run.calls_table, run.metrics_table
        if not metrics.num_rows or not calls.num_rows:
            raise CheckpointError(f"there are no rounds to project: {run.why_empty}")
        for table, names, file in ((metrics, _METRICS, "metrics"), (calls, _CALLS, "calls")):
            missing = [name for name in names if name not in table.column_names]
            if missing:
                raise CheckpointError(
                    f"run {run.id}: the table {file} of an earlier version of Fenchel has no column "
                    f"{', '.join(missing)}; repeat the run with this version"
                )
        if _in_one_process(run):
            raise CheckpointError(
                f"run {run.id} was in one process (--in-process), where clients compute one after the other "
                "without a network; project a run of fenchel up or fenchel server"
            )
        origin = min(calls["queued_unix"][0].as_py(), metrics["started_unix"][0].as_py())
        steps = _steps(calls, origin, run.steady.away)
        started = columns.column(metrics, "started_unix") - origin
        ended = started + columns.column(metrics, "seconds")
        judged = ended + columns.column(metrics, "evaluation_s")
        numbers = columns.column(metrics, "round").astype(int).tolist()
        of_round: dict[tuple[int, bool], list[Step]] = {}
        for t, step in steps:
            of_round.setdefault((t, step.kind == "inspect"), []).append(step)

        def segments(starts: Floats, stops: Floats, is_evaluation: bool) -> tuple[Segment, ...]:
            return tuple(
                Segment(float(start), float(stop), tuple(of_round.get((t, is_evaluation), ())))
                for t, start, stop in zip(numbers, starts, stops, strict=True)
            )

        before = [step for t, step in steps if t < numbers[0]]
        return cls(
            run=run,
            setup=Segment(before[0].started if before else float(started[0]), float(started[0]), tuple(before)),
            rounds=segments(started, ended, is_evaluation=False),
            evaluations=segments(ended, judged, is_evaluation=True),
            overdue=sum(not each.answered for _, step in steps if step.is_awaited for each in step.instructions),
        )


def _in_one_process(run: Run) -> bool:
    """Return True if clients and server were one process, which leaves no socket bytes, and no logs or says so."""
    folder = RunFolder(run.path)
    logs = folder.log.exists() or (run.path / "clients").exists()
    crossed = columns.column(run.calls_table, "socket_up")
    return not np.isfinite(crossed).any() and (not logs or bool(logged(folder.log, IN_ONE_PROCESS)))


def _steps(calls: pa.Table, origin: float, away: Floats) -> list[tuple[int, Step]]:
    """Return the requests with their rounds, in the order of their starts."""
    rows = calls.select(_CALLS).to_pylist()
    for row in rows:
        row["queued_unix"] -= origin
    instructions = _instructions(rows, away)
    steps = []
    for (t, phase, kind, _), group in groupby(
        zip(_occasions(rows), rows, instructions, strict=True),
        key=lambda entry: (entry[1]["round"], entry[1]["phase"], entry[1]["kind"], entry[0]),
    ):
        entries = list(group)
        steps.append((t, _step(phase, kind, [row for _, row, _ in entries], [each for *_, each in entries])))
    return sorted(steps, key=lambda entry: entry[1].started)


def _occasions(rows: Sequence[dict[str, Any]]) -> Iterator[int]:
    """Yield for each row the number of its request. A request has one phase, and at most one row for each client."""
    occasion, of, seen = 0, ("", ""), set[str]()
    for row in rows:
        if (row["phase"], row["kind"]) != of or row["client"] in seen:
            occasion, of, seen = occasion + 1, (row["phase"], row["kind"]), set()
        seen.add(row["client"])
        yield occasion


def _step(phase: str, kind: str, rows: Sequence[dict[str, Any]], each: Sequence[Instruction]) -> Step:
    ended = each[-1].queued
    rest = 0.0
    if kind != "tell":
        # The columns total, take and waiting add up to the time from queueing to the end of the request.
        ends = [
            (row["queued_unix"] + row["total_s"] + _taking(row) + columns.known(row["waiting_s"]), row["waiting_s"])
            for row in rows
            if row["outcome"] in ("counted", "failed") and math.isfinite(row["total_s"])
        ]
        ended = max([ended, *(end for end, _ in ends)])
        rest = max(min((columns.known(waiting) for _, waiting in ends), default=0.0), 0.0)
    return Step(phase, kind, tuple(each), ended, rest, any(not one.answered for one in each) and kind != "tell")


def _instructions(rows: Sequence[dict[str, Any]], away: Floats) -> list[Instruction]:
    """Return each row as an instruction, without its wait for the previous one of the client.

    The time until the client reconnected to a restarted server is subtracted, too.
    """
    free: dict[str, float] = {}  # time at which each client sent its last reply
    found = []
    for row, absent in zip(rows, away, strict=True):
        arrived, replied = row["queued_unix"] + row["arrived_s"], row["queued_unix"] + row["replied_s"]
        queue = columns.known(row["client_queue_s"])
        encryption, coding = (
            sum(columns.known(row[name]) for name in columns_of(part, CLIENT_STAGES))
            for part in ("encryption", "coding")
        )
        other = columns.known(row["handover_s"])
        own_queue = queue
        if math.isfinite(arrived) and math.isfinite(replied):
            other = max(other, replied - arrived - queue - encryption - coding - columns.known(row["compute_s"]))
            begun = arrived + queue
            own_queue = max(begun - max(arrived, free.get(row["client"], arrived)), 0.0)
            free[row["client"]] = replied
        found.append(
            Instruction(
                client=row["client"],
                queued=row["queued_unix"],
                down=row["wire_down"],
                up=row["wire_up"],
                away=max(columns.known(row["away_s"]) - absent, 0.0) + columns.known(row["broken_s"]),
                server_queue=max(columns.known(row["queue_s"]), 0.0),
                client_queue=own_queue,
                compute=columns.known(row["compute_s"]),
                encryption=encryption,
                coding=coding,
                other=other,
                decode=max(columns.known(row["decode_s"]), 0.0),
                take=max(_taking(row), 0.0),
                answered=row["outcome"] in ("counted", "failed", "confirmed") and math.isfinite(row["network_s"]),
            )
        )
    return found


def _taking(row: dict[str, Any]) -> float:
    return sum(columns.known(row[name]) for name in TAKING)
