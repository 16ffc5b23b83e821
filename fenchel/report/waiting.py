"""Who waited for whom: for each client and round, how long its answers took, and how long it waited for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fenchel.report import columns
from fenchel.report.columns import Floats

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class Waiting:
    """A map of c clients by m rounds, or of groups of either."""

    clients: list[str]  # names of the c rows; those that take longest come first
    rounds: list[str]  # names of the m columns
    took: Floats
    """Seconds until the client's answers were taken, summed over the exchanges of the round, shape (c, m); of a group
    the mean. Nan where it was not asked, or did not answer."""
    waited: Floats
    """Seconds from then until the exchanges were over, shape (c, m): how long it waited for slower clients. Nan also
    where the run's table does not say."""
    missed: NDArray[np.int64]  # instructions without an answer that counted, shape (c, m), int64


def waiting_of(calls: pa.Table) -> Waiting:
    """Return the map of all clients and rounds.

    calls: rows of ``calls.parquet``. Only exchanges that were waited for count: no promises, no evaluation.
    """
    if "kind" in calls.column_names:
        calls = calls.filter(pc.equal(calls["kind"], "ask"))
    if not calls.num_rows or "client" not in calls.column_names:
        nothing = np.empty((0, 0))
        return Waiting([], [], nothing, nothing, nothing.astype(np.int64))
    clients, row = columns.grouped(calls, "client")
    rounds, column = np.unique(columns.column(calls, "round").astype(np.int64), return_inverse=True)
    cells, shape = row * rounds.size + column, (len(clients), rounds.size)
    took, waited = (
        columns.sums_by(seconds, cells, len(clients) * rounds.size).reshape(shape)
        for seconds in (columns.until_taken(calls), columns.column(calls, "waiting_s"))
    )
    outcome = np.asarray(calls["outcome"].to_pylist(), dtype=object)
    missed = np.bincount(cells[outcome != "counted"], minlength=took.size).reshape(shape)
    # Those that never answered (nan) are the slowest of all.
    mean = np.nan_to_num(_means(took), nan=np.inf)
    order = sorted(range(len(clients)), key=lambda k: (-mean[k], clients[k]))
    return Waiting(
        clients=[clients[k] for k in order],
        rounds=[str(t) for t in rounds],
        took=took[order],
        waited=waited[order],
        missed=missed[order],
    )


def thinned(full: Waiting, clients: int, rounds: int) -> Waiting:
    """Return a smaller map, in which neighbours are grouped: clients that are about equally slow, rounds in a row.

    clients, rounds: at most as many rows and columns.
    """
    rows, columns = (_starts(size, most) for size, most in zip(full.took.shape, (clients, rounds), strict=True))
    return Waiting(
        clients=_names(full.clients, rows, " … "),
        rounds=_names(full.rounds, columns, "–"),
        took=_grouped_means(full.took, rows, columns),
        waited=_grouped_means(full.waited, rows, columns),
        missed=_grouped(full.missed, rows, columns),
    )


def _means(values: Floats) -> Floats:
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    sums = np.where(known, values, 0.0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _starts(size: int, most: int) -> NDArray[np.int64]:
    """Return where each of at most ``most`` groups of equal size begins."""
    groups = min(size, most)
    return np.array([part[0] for part in np.array_split(np.arange(size), groups)] if groups else [], np.int64)


def _names(names: list[str], starts: NDArray[np.int64], between: str) -> list[str]:
    ends = [*starts, len(names)][1:]
    return [names[a] if b - a == 1 else f"{names[a]}{between}{names[b - 1]}" for a, b in zip(starts, ends, strict=True)]


def _grouped(values: NDArray[Number], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[Number]:
    if not values.size:
        return values
    sums: NDArray[Number] = np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1)
    return sums


def _grouped_means(values: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
    known = np.isfinite(values)
    counts = _grouped(known.astype(np.int64), rows, columns)
    sums = _grouped(np.where(known, values, 0.0), rows, columns)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
