"""What a resumed run spent until its clients were back; and its tables without that.

A server that has been started again asks its clients at once, before they have found it. The instruction
waits until its client is there, and the tables have that as absence in the first round. It is no cost of a
round: here it is found, and taken out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fenchel.report.columns import Floats, column, grouped, until_taken

_EPOCH_BITS = 32
"""A server that is started again numbers its instructions from the next multiple of two to this power."""
_NEEDED = (
    *("round", "phase", "kind", "client", "sequence", "outcome", "queued_unix"),
    *("away_s", "queue_s", "total_s", "take_s", "waiting_s"),
)


@dataclass(frozen=True)
class Steady:
    """The tables of a run as if, after each start of the server, all clients had been there when they were asked.

    Attributes
    ----------
    metrics
        Metrics, calls: m and k rows, with the columns of ``metrics.parquet`` and ``calls.parquet``. A round begins, and
        an instruction is queued, later by what was taken out.
    away
        Seconds of each instruction until its client was back, shape (k,).
    rounds
        Rounds, evaluations: seconds that were taken out of each round and of the evaluation after it, shape (m,): of
        the answers that they waited for.
    """

    metrics: pa.Table
    calls: pa.Table
    away: Floats
    rounds: Floats
    evaluations: Floats

    @property
    def seconds(self) -> float:
        """All that was taken out of rounds and evaluations."""
        return float(self.rounds.sum() + self.evaluations.sum())


def steady(metrics: pa.Table, calls: pa.Table) -> Steady:
    """Return the tables of a run without the time in which its clients came back to a server that was started again.

    Of a run that was never resumed these are the tables themselves.
    """
    away, nothing = away_of(calls), np.zeros(metrics.num_rows)
    if not away.any():
        return Steady(metrics, calls, away, nothing, nothing)
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
            # Who had been there sooner would have waited for less.
            shorter = _shorter(calls.take(rows[members]), away[rows[members]], away[rows[last]])
            cut[rows[members]] = shorter
            idle[place] += shorter.mean() if kind == "ask" else 0.0
    rounds = np.minimum(taken["ask"], np.nan_to_num(column(metrics, "away_s")).clip(0.0))
    evaluations = np.minimum(taken["inspect"], np.nan_to_num(column(metrics, "evaluation_s")))
    idle = np.minimum(idle, np.nan_to_num(column(metrics, "idle_s")))
    less = {"seconds": rounds, "away_s": rounds, "evaluation_s": evaluations, "idle_s": idle}
    earlier = {"away_s": away, "total_s": away, "arrived_s": away, "replied_s": away, "waiting_s": cut}
    return Steady(
        metrics=_without(metrics, less | {"started_unix": -rounds}),
        calls=_without(calls, earlier | {"queued_unix": -away}),
        away=away,
        rounds=rounds,
        evaluations=evaluations,
    )


def epochs_of(calls: pa.Table) -> NDArray[np.int64]:
    """Return how often the server had been started again before it queued each instruction, shape (k,)."""
    if "sequence" not in calls.column_names:
        return np.zeros(calls.num_rows, np.int64)
    return np.asarray(calls["sequence"].to_numpy(), np.int64) >> _EPOCH_BITS


def away_of(calls: pa.Table) -> Floats:
    """Return the seconds of each instruction until its client was back, shape (k,); 0 before the first resumption."""
    away = np.zeros(calls.num_rows)
    epoch = epochs_of(calls)
    if any(name not in calls.column_names for name in _NEEDED) or not epoch.any():
        return away
    queued, absent = column(calls, "queued_unix"), np.nan_to_num(column(calls, "away_s"))
    rows = np.flatnonzero((epoch > 0) & np.isfinite(column(calls, "queue_s")))  # those that were sent
    _, client = grouped(calls, "client")
    pairs = np.stack([client[rows], epoch[rows]], axis=1)
    _, of = np.unique(pairs, axis=0, return_inverse=True)
    # A client is back when it was there for one of them; later ones waited for it because it was away again.
    back = np.full(of.max(initial=-1) + 1, np.inf)
    np.minimum.at(back, of, queued[rows] + absent[rows])
    away[rows] = np.clip(back[of] - queued[rows], 0.0, absent[rows])
    return away


def _awaited(calls: pa.Table, away: Floats) -> Iterator[tuple[str, NDArray[np.int64], int]]:
    """Yield the exchanges of one round that it waited for: kind, rows of counted answers, row of the last of them."""
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
            if over <= now:  # else it went on beside one that lasted longer
                now = started
                last = int(answers[np.argmax(ended[answers])])
                if away[answers].any():
                    yield kind, answers, last


def _exchanges(calls: pa.Table, kind: str) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each question of a kind: the same phase, asked of each client once."""
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
    """Return by how much each answer of an exchange would have waited less for the last one."""
    ended = column(calls, "queued_unix") + until_taken(calls)
    shorter: Floats = np.minimum(np.maximum(last - away, 0.0), ended.max() - ended)
    return shorter


def _without(table: pa.Table, less: Mapping[str, Floats]) -> pa.Table:
    """Return a table with something taken from the values of some columns, as far as it has them."""
    for name, seconds in less.items():
        if name in table.column_names:
            values = column(table, name) - seconds
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table
