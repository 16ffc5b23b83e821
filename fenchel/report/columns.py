"""Columns of a run's tables."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fenchel.common.objectives.metrics import FIGURES
from fenchel.common.storage.call_columns import TAKING
from fenchel.common.storage.round_columns import COUNTS, SOCKETS, TIMES

Floats = NDArray[np.float64]


def column(table: pa.Table, name: str) -> Floats:
    """Return a column as numbers, with nan for missing values or a missing column."""
    if name not in table.column_names:
        return np.full(table.num_rows, math.nan)
    return np.asarray(table[name].cast(pa.float64(), safe=False).to_numpy(), np.float64)


def known(seconds: float | None) -> float:
    """Return a number of seconds, or 0 if it is unknown."""
    return seconds if seconds is not None and math.isfinite(seconds) else 0.0


def answered(calls: pa.Table) -> pa.Table:
    """Return the calls with a reply in time that is no failure."""
    return calls.filter(pc.field("outcome").isin(["counted", "confirmed"]))


def grouped(table: pa.Table, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column, in the order of their first rows, and the index of each row's text."""
    encoded = pc.fill_null(table[name], "").combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def sums_by(values: Floats, group: NDArray[np.int64], groups: int) -> Floats:
    """Return the sum of the known values of each group, shape (groups,), or nan if none is known.

    Parameters
    ----------
    values
        Values, shape (n,).
    group
        Number of each value's group, shape (n,).
    groups
        Number of groups.
    """
    known = np.isfinite(values)
    sums = np.bincount(group[known], weights=values[known], minlength=groups)
    return np.where(np.bincount(group[known], minlength=groups) > 0, sums, np.nan)


def until_taken(calls: pa.Table) -> Floats:
    """Return the seconds from the queueing of each call until its reply was part of the result."""
    return column(calls, "total_s") + sum(np.nan_to_num(column(calls, name)) for name in TAKING)


def until_over(calls: pa.Table) -> Floats:
    """Return the seconds from the queueing of each call until the end of its request."""
    return until_taken(calls) + np.nan_to_num(column(calls, "waiting_s"))


def figures(metrics: pa.Table) -> list[str]:
    """Return the names of the columns of figures: first figures of the evaluation, then figures of the algorithm."""
    own = [name for name in metrics.column_names if name not in {*COUNTS, *SOCKETS, *TIMES, *FIGURES}]
    return [name for name in FIGURES if name in metrics.column_names] + own
