"""Time until clients reconnected to a resumed run, and tables of the run without this time.

A restarted server sends instructions at once, before its clients have reconnected. The tables contain this time as
absence in the first round after the restart. It is not a cost of the round, so it is subtracted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fenchel.common.storage.call_columns import TAKING
from fenchel.report.columns import Floats, column, grouped, until_taken

_EPOCH_BITS = 32
"""A restarted server numbers its instructions from the next multiple of 2 to this power."""
_NEEDED = (
    *("round", "phase", "kind", "client", "sequence", "outcome", "queued_unix"),
    *("away_s", "queue_s", "total_s", *TAKING, "waiting_s"),
)


@dataclass(frozen=True)
class SteadyState:
    """Tables of a run without the time of reconnection after restarts of the server.

    Attributes
    ----------
    metrics, calls
        Tables of m and k rows, with the columns of ``metrics.parquet`` and ``calls.parquet``. Start times of rounds and
        times of queueing are later by the subtracted time.
    away
        Seconds of each instruction until its client reconnected, shape (k,).
    rounds, evaluations
        Seconds subtracted from each round and from the evaluation after it, shape (m,).
    """

    metrics: pa.Table
    calls: pa.Table
    away: Floats
    rounds: Floats
    evaluations: Floats

    @property
    def seconds(self) -> float:
        """Total of the seconds subtracted from rounds and evaluations."""
        return float(self.rounds.sum() + self.evaluations.sum())


def steady(metrics: pa.Table, calls: pa.Table) -> SteadyState:
    """Return the tables of a run without the time of reconnection after restarts of the server.

    For a run that was never resumed these are the tables themselves.
    """
    away, nothing = away_of(calls), np.zeros(metrics.num_rows)
    if not away.any():
        return SteadyState(metrics, calls, away, nothing, nothing)
    taken: Mapping[str, Floats] = {"ask": nothing, "inspect": nothing.copy()}
    idle, cut = np.zeros(metrics.num_rows), np.zeros(calls.num_rows)
    numbers = column(calls, "round")
    touched = np.unique(numbers[away > 0])
    for place, t in enumerate(column(metrics, "round")):
        if t not in touched:
            continue
        rows = np.flatnonzero(numbers == t)
        for kind, members, last in _awaited(calls.take(rows), away[rows]):
            taken[kind][place] += away[rows[last]]
            # If a client had been connected earlier, the round would have waited less for it.
            shorter = _shorter(calls.take(rows[members]), away[rows[members]], away[rows[last]])
            cut[rows[members]] = shorter
            idle[place] += shorter.mean() if kind == "ask" else 0.0
    rounds = np.minimum(taken["ask"], np.nan_to_num(column(metrics, "away_s")).clip(0.0))
    evaluations = np.minimum(taken["inspect"], np.nan_to_num(column(metrics, "evaluation_s")))
    idle = np.minimum(idle, np.nan_to_num(column(metrics, "idle_s")))
    less = {"seconds": rounds, "away_s": rounds, "evaluation_s": evaluations, "idle_s": idle}
    earlier = {"away_s": away, "total_s": away, "arrived_s": away, "replied_s": away, "waiting_s": cut}
    return SteadyState(
        metrics=_without(metrics, less | {"started_unix": -rounds}),
        calls=_without(calls, earlier | {"queued_unix": -away}),
        away=away,
        rounds=rounds,
        evaluations=evaluations,
    )


def epochs_of(calls: pa.Table) -> NDArray[np.int64]:
    """Return the number of restarts of the server before each instruction, shape (k,)."""
    if "sequence" not in calls.column_names:
        return np.zeros(calls.num_rows, np.int64)
    return np.asarray(calls["sequence"].to_numpy(), np.int64) >> _EPOCH_BITS


def away_of(calls: pa.Table) -> Floats:
    """Return the seconds of each instruction until its client reconnected, shape (k,); 0 before the first restart."""
    away = np.zeros(calls.num_rows)
    epoch = epochs_of(calls)
    if any(name not in calls.column_names for name in _NEEDED) or not epoch.any():
        return away
    queued, absent = column(calls, "queued_unix"), np.nan_to_num(column(calls, "away_s"))
    rows = np.flatnonzero((epoch > 0) & np.isfinite(column(calls, "queue_s")))  # calls sent after a restart
    _, client = grouped(calls, "client")
    pairs = np.stack([client[rows], epoch[rows]], axis=1)
    _, of = np.unique(pairs, axis=0, return_inverse=True)
    # Only absence before the first connection after a restart counts; later absences are ordinary.
    back = np.full(of.max(initial=-1) + 1, np.inf)
    np.minimum.at(back, of, queued[rows] + absent[rows])
    away[rows] = np.clip(back[of] - queued[rows], 0.0, absent[rows])
    return away


def _awaited(calls: pa.Table, away: Floats) -> Iterator[tuple[str, NDArray[np.int64], int]]:
    """Yield the awaited requests of a round that include a reconnected client.

    Each is given by its kind, the rows of its counted replies, and the row of the last of them.
    """
    ended = column(calls, "queued_unix") + until_taken(calls)
    counted = np.asarray(calls["outcome"].to_pylist(), dtype=object) == "counted"
    for kind in ("ask", "inspect"):
        found = []
        for members in _exchanges(calls, kind):
            answers = members[counted[members] & np.isfinite(ended[members])]
            if answers.size:
                started = column(calls, "queued_unix")[members].min()
                found.append((float(ended[answers].max()), float(started), answers))
        now = np.inf
        for over, started, answers in sorted(found, key=lambda one: -one[0]):
            if over <= now:  # a request that overlapped a later one adds nothing
                now = started
                last = int(answers[np.argmax(ended[answers])])
                if away[answers].any():
                    yield kind, answers, last


def _exchanges(calls: pa.Table, kind: str) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each request of a kind. A request has one phase, and at most one row for each client."""
    open_rows: dict[str, tuple[list[int], set[str]]] = {}
    rows = zip(*(calls[name].to_pylist() for name in ("kind", "phase", "client")), strict=True)
    for row, (what, phase, client) in enumerate(rows):
        if what != kind:
            continue
        members, clients = open_rows.setdefault(phase, ([], set()))
        if client in clients:
            yield np.array(members)
            members, clients = open_rows[phase] = [], set()
        members.append(row)
        clients.add(client)
    for members, _ in open_rows.values():
        yield np.array(members)


def _shorter(calls: pa.Table, away: Floats, last: float) -> Floats:
    """Return the seconds by which each reply would have waited less for the last one, had no client been away."""
    ended = column(calls, "queued_unix") + until_taken(calls)
    shorter: Floats = np.minimum(np.maximum(last - away, 0.0), ended.max() - ended)
    return shorter


def _without(table: pa.Table, less: Mapping[str, Floats]) -> pa.Table:
    """Return a table with amounts subtracted from some columns. Columns that the table lacks are ignored."""
    for name, seconds in less.items():
        if name in table.column_names:
            values = column(table, name) - seconds
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table
