"""Division of positions and counts into shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Indices

_SCALINGS = 500
"""Limit on the iterations that scale rows and columns. A few dozen suffice unless few tables meet the bounds."""


def apportion(
    total: int, weights: NDArray[Any], at_least: int = 0, at_most: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Divide a count in proportion to weights, by largest remainder, within bounds.

    Parameters
    ----------
    total
        Count to divide, from ``at_least`` times k to the sum of ``at_most``.
    weights
        Weights, shape (k,), not negative, not all zero.
    at_least
        Lower bound of each share. The largest shares are reduced to meet it.
    at_most
        Upper bounds of the shares, shape (k,). The excess goes to the shares furthest below their proportion.

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
    """Divide the positions 0 to ``total - 1`` at random into sorted parts whose sizes differ by at most one."""
    return [np.sort(rows) for rows in np.array_split(rng.permutation(total), parts)]


def by_owner(owner: NDArray[np.int64], owners: int) -> list[Indices]:
    """Return the positions of each owner, increasing, given each position's owner, 0 to ``owners - 1``, shape (n,)."""
    # NumPy sorts 16-bit integers stably by radix sort, which is ten times as fast.
    narrow = owner.astype(np.uint16) if owners <= 1 << 16 else owner
    order: Indices = np.argsort(narrow, kind="stable")
    sizes = np.bincount(owner, minlength=owners)
    parts: list[Indices] = np.split(order, np.cumsum(sizes)[:-1])
    return parts


def fill(open_cells: NDArray[np.bool_], total: int, stock: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Fill cells of a table evenly with integers, such that all rows have the same sum.

    Rows are scaled to their sum and columns to at most their bound, in turn, until both hold. A maximum flow then
    rounds the fractions up or down.

    Parameters
    ----------
    open_cells
        Mask of cells with a value of at least 1, shape (rows, columns). Other cells are 0.
    total
        Sum of each row.
    stock
        Upper bounds of the column sums, shape (columns,).

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
    # Scaling may not converge if few tables meet the bounds. Any valid table is then accepted.
    return _topped_up(open_cells.astype(np.int64), open_cells, total, stock, most=total) if even is None else even


def _topped_up(
    whole: NDArray[np.int64], open_cells: NDArray[np.bool_], total: int, stock: NDArray[np.int64], *, most: int
) -> NDArray[np.int64] | None:
    """Add at most ``most`` to each open cell to reach the row sums ``total``, or return ``None`` if impossible."""
    from scipy.sparse.csgraph import maximum_flow  # late import, because few processes need it

    missing, left = total - whole.sum(axis=1), stock - whole.sum(axis=0)
    if missing.min() < 0 or left.min() < 0:
        return None
    rows, columns = whole.shape
    source, sink = rows + columns, rows + columns + 1
    at_row, at_column = np.nonzero(open_cells)
    starts = np.concatenate([np.full(rows, source), at_row, rows + np.arange(columns)])
    ends = np.concatenate([np.arange(rows), rows + at_column, np.full(columns, sink)])
    capacities = np.concatenate([missing, np.full(at_row.size, most), left]).astype(np.int32)
    graph = scipy.sparse.csr_array((capacities, (starts, ends)), shape=(sink + 1, sink + 1))
    found = maximum_flow(graph, source, sink)
    if found.flow_value < missing.sum():
        return None
    added = found.flow.toarray()[:rows, rows : rows + columns].astype(np.int64)
    result: NDArray[np.int64] = whole + added
    return result
