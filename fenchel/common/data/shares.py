"""Dividing positions and numbers of things."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import maximum_flow

from fenchel.common.arrays import Indices

_SCALINGS = 500
"""Rounds of scaling rows and columns; some dozens are enough where there is room."""


def apportion(
    total: int, weights: NDArray[Any], at_least: int = 0, at_most: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Divide a number of things in proportion to weights, by largest remainder, within bounds.

    Parameters
    ----------
    total
        How many things, at least ``at_least`` for each weight and at most the sum of ``at_most``.
    weights
        Shape (k,), not negative, not all zero.
    at_least
        Smallest share; the largest shares give up what is missing.
    at_most
        Largest shares, shape (k,); what exceeds them goes to the shares that are furthest below their due.

    Returns
    -------
    NDArray[np.int64]
        Shape (k,), int64, with sum ``total``.
    """
    due = total * (weights / weights.sum())
    rounded = np.floor(due).astype(np.int64)
    surplus = np.argsort(rounded - due, kind="stable")[: total - int(rounded.sum())]
    rounded[surplus] += 1
    limits = np.full(len(rounded), total) if at_most is None else at_most
    shares: NDArray[np.int64] = np.clip(rounded, at_least, limits)
    while int(shares.sum()) < total:
        shares[np.argmax(np.where(shares < limits, due - shares, -np.inf))] += 1
    while int(shares.sum()) > total:
        shares[np.argmax(np.where(shares > at_least, shares, -1))] -= 1
    return shares


def deal(total: int, parts: int, rng: np.random.Generator) -> list[Indices]:
    """Divide the positions 0..total-1 at random into parts whose sizes differ by one at most, each sorted."""
    return [np.sort(rows) for rows in np.array_split(rng.permutation(total), parts)]


def by_owner(owner: NDArray[np.int64], owners: int) -> list[Indices]:
    """Collect the positions of each owner 0..owners-1, increasing; ``owner`` has shape (n,)."""
    # The stable sort of 16-bit numbers is a radix sort, ten times as fast.
    narrow = owner.astype(np.uint16) if owners <= 1 << 16 else owner
    order: Indices = np.argsort(narrow, kind="stable")
    sizes = np.bincount(owner, minlength=owners)
    parts: list[Indices] = np.split(order, np.cumsum(sizes)[:-1])
    return parts


def fill(open_cells: NDArray[np.bool_], total: int, stock: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Fill cells of a table with whole numbers, evenly, so that each row has the same sum.

    Rows are scaled to their sum and columns to at most their stock, in turn, until both hold; what is then left
    after the point is rounded up or down by a maximum flow.

    Parameters
    ----------
    open_cells
        Which cells get at least 1, shape (rows, columns); the others get 0.
    total
        Sum of each row.
    stock
        The largest sums of the columns, shape (columns,).

    Returns
    -------
    NDArray[np.int64] | None
        Shape (rows, columns), int64; ``None`` if there is no such table.
    """
    shares = np.where(open_cells, total / np.maximum(open_cells.sum(axis=1, keepdims=True), 1), 0.0)
    for _ in range(_SCALINGS):
        shares *= np.minimum(1, stock / np.maximum(shares.sum(axis=0), 1))
        shares = np.where(open_cells, np.maximum(shares, 1), 0)
        sums = shares.sum(axis=1, keepdims=True)
        if np.abs(sums - total).max() < 1e-9 * total and (shares.sum(axis=0) <= stock + 1e-9).all():
            break
        shares *= total / sums
    whole = np.where(open_cells, np.maximum(np.floor(shares - 1e-6), 1), 0).astype(np.int64)
    even = _topped_up(whole, open_cells, total, stock, most=1)
    # Where there is hardly any room scaling may not come to its end: then any table will do.
    return _topped_up(open_cells.astype(np.int64), open_cells, total, stock, most=total) if even is None else even


def _topped_up(
    whole: NDArray[np.int64], open_cells: NDArray[np.bool_], total: int, stock: NDArray[np.int64], *, most: int
) -> NDArray[np.int64] | None:
    """Add at most ``most`` to each open cell, so that rows and columns have the sums of :func:`fill`."""
    missing, left = total - whole.sum(axis=1), stock - whole.sum(axis=0)
    if missing.min() < 0 or left.min() < 0:
        return None
    rows, columns = whole.shape
    source, sink = rows + columns, rows + columns + 1
    at_row, at_column = np.nonzero(open_cells)
    starts = np.concatenate([np.full(rows, source), at_row, rows + np.arange(columns)])
    ends = np.concatenate([np.arange(rows), rows + at_column, np.full(columns, sink)])
    capacities = np.concatenate([missing, np.full(at_row.size, most), left]).astype(np.int32)
    graph = sp.csr_array((capacities, (starts, ends)), shape=(sink + 1, sink + 1))
    found = maximum_flow(graph, source, sink)
    if found.flow_value < missing.sum():
        return None
    added = found.flow.toarray()[:rows, rows : rows + columns].astype(np.int64)
    result: NDArray[np.int64] = whole + added
    return result
