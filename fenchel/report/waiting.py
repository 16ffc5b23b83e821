"""Waiting times by client and round: time until the client's replies, and its wait for slower clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fenchel.report import columns
from fenchel.report.columns import Floats

Groups: TypeAlias = list[NDArray[np.int64]]
"""Consecutive positions in each group."""

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class Waiting:
    """Waiting times of c clients in m rounds, or of c groups of clients in m groups of rounds.

    Attributes
    ----------
    clients
        Names of the c rows, slowest first.
    rounds
        Names of the m columns.
    took
        Seconds until the client's replies were taken, summed over the requests of a round, or the mean of a group,
        shape (c, m). nan if the client was not asked, or did not answer.
    waited
        Seconds from the client's replies to the end of the requests, aggregated like ``took``, shape (c, m). In this
        time it waited for slower clients. nan also if unknown.
    missed
        Number of instructions without a reply that counted, shape (c, m), int64.
    """

    clients: list[str]
    rounds: list[str]
    took: Floats
    waited: Floats
    missed: NDArray[np.int64]


def waiting_of(calls: pa.Table) -> Waiting:
    """Return the waiting times of all clients in all rounds.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``. Only requests that a round waited for count, not ``tell`` or evaluation.
    """
    calls = calls.filter(pc.field("kind") == "ask")
    clients, row = columns.grouped(calls, "client")
    rounds, column = np.unique(columns.column(calls, "round").astype(np.int64), return_inverse=True)
    cells, shape = row * rounds.size + column, (len(clients), rounds.size)
    took, waited = (
        columns.sums_by(seconds, cells, len(clients) * rounds.size).reshape(shape)
        for seconds in (columns.until_taken(calls), columns.column(calls, "waiting_s"))
    )
    outcome = np.asarray(calls["outcome"].to_pylist(), dtype=object)
    missed = np.bincount(cells[outcome != "counted"], minlength=took.size).reshape(shape)
    with np.errstate(invalid="ignore"):  # clients without a reply have mean nan, and count as the slowest
        mean = np.nan_to_num(np.nansum(took, axis=1) / np.isfinite(took).sum(axis=1), nan=np.inf)
    order = sorted(range(len(clients)), key=lambda k: (-mean[k], clients[k]))
    return Waiting(
        clients=[clients[k] for k in order],
        rounds=[str(t) for t in rounds],
        took=took[order],
        waited=waited[order],
        missed=missed[order],
    )


def thinned(full: Waiting, clients: int, rounds: int) -> Waiting:
    """Return a smaller map by grouping neighbours: clients of similar speed, and consecutive rounds.

    Parameters
    ----------
    full
        Map of all clients and rounds.
    clients, rounds
        Largest numbers of rows and columns.
    """
    rows, columns = (neighbours(size, most) for size, most in zip(full.took.shape, (clients, rounds), strict=True))
    return Waiting(
        clients=names_of(full.clients, rows, " … "),
        rounds=names_of(full.rounds, columns, "–"),
        took=_grouped_means(full.took, rows, columns),
        waited=_grouped_means(full.waited, rows, columns),
        missed=_grouped(full.missed, rows, columns),
    )


def neighbours(size: int, most: int) -> Groups:
    """Return the numbers below ``size`` in at most ``most`` consecutive groups of about equal size."""
    return np.array_split(np.arange(size), min(size, most)) if size else []


def names_of(names: Sequence[str], groups: Groups, between: str) -> list[str]:
    """Return a name for each group: the name of its only member, or the names of its first and last members."""
    return [names[each[0]] if each.size == 1 else f"{names[each[0]]}{between}{names[each[-1]]}" for each in groups]


def _grouped(values: NDArray[Number], rows: Groups, columns: Groups) -> NDArray[Number]:
    if not values.size:
        return values
    top, left = ([group[0] for group in groups] for groups in (rows, columns))
    sums: NDArray[Number] = np.add.reduceat(np.add.reduceat(values, top, axis=0), left, axis=1)
    return sums


def _grouped_means(values: Floats, rows: Groups, columns: Groups) -> Floats:
    known = np.isfinite(values)
    counts = _grouped(known.astype(np.int64), rows, columns)
    sums = _grouped(np.where(known, values, 0.0), rows, columns)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
