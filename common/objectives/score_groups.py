"""The area under the ROC curve of samples that lie with many clients, who tell their scores in groups.

Bins divide the line of scores, for everybody alike. A client tells how many of its positive samples have scores in
which range of bins, and likewise of its negative samples. A range that is told holds ``least`` samples or more, or all
that there are. From the ranges of all clients follow an estimate of the AUC of all samples together, and bounds: where
the range of a positive and that of a negative sample are disjoint, their order is known; where they overlap it is not.

With ``least`` above 1, what a reply tells of fewer than ``least`` samples is never finer than a 32nd part of the line:
from where the line was cut it can follow that *some* sample lies in one of these parts. Within a part, groups say that
``least`` or more samples are in a range, and never that any of them is in one half of it. Where ``least`` or more have
scores in the same bin, their bin may be told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from common.arrays import Vector

PARTS = 32
"""Parts of the line, all of the same width but for whole bins, at whose ends it is cut before anything is halved."""

Groups: TypeAlias = NDArray[np.int64]
"""Samples of one client and class by ranges of scores, shape (groups, 3): the first bin of a range, the bin after its
last, and how many samples have scores there. Ranges are in order and do not overlap; in between there are none."""


def score_groups(scores: Vector, bins: int, least: int) -> Groups:
    """Divide scores into groups.

    The range of all bins is cut between two of its :data:`PARTS`, nearest to the middle of all places that leave
    ``least`` samples or none on either side; and so is each range that follows, down to single parts. A part is halved,
    and each half again, as long as both hold ``least``: were an empty half cut off, a range that is not halved would
    tell that there is a sample in either half. A range that cannot be cut is a group. With ``least`` 1, where there is
    nothing to hide, empty halves are cut off and a group is a bin. Where there are fewer samples than ``least``, they
    are one group in the range of all bins, which tells only their number.

    Parameters
    ----------
    scores
        Finite, shape (n,).
    bins
        How many; bin j holds the scores s with ``j <= bins / (1 + exp(-s)) < j + 1``.
    least
        How many samples a group holds at least.
    """
    # Scores are compared with the edges: mapped to (0, 1) themselves, they could change order by rounding.
    edges = logit(np.arange(1, bins) / bins)
    counts = np.bincount(np.searchsorted(edges, scores, side="right"), minlength=bins)
    before = [0, *np.cumsum(counts).tolist()]
    groups, pending = [], [(0, bins)]
    while pending:
        start, stop = pending.pop()
        if before[stop] == before[start]:
            continue
        cut = _cut(before, start, stop, least)
        if cut is None:
            groups.append((start, stop, before[stop] - before[start]))
        else:
            pending += [(cut, stop), (start, cut)]
    return np.array(groups, np.int64).reshape(-1, 3)


def _cut(before: Sequence[int], start: int, stop: int, least: int) -> int | None:
    """Return where a range is cut, if it can be.

    Parameters
    ----------
    before
        How many samples lie before each bin, shape (bins + 1,).
    """

    def held(cut: int) -> tuple[int, int]:
        return before[cut] - before[start], before[stop] - before[cut]

    bins = len(before) - 1
    edges = [k * bins // PARTS for k in range(1, PARTS)]
    # Fixed places in a fixed order: no cut is fitted to the samples.
    coarse = sorted(
        (edge for edge in edges if start < edge < stop), key=lambda edge: abs(2 * edge - start - stop)
    )
    if coarse:
        return next((edge for edge in coarse if all(n == 0 or n >= least for n in held(edge))), None)
    if stop - start == 1:
        return None
    middle = (start + stop) // 2
    return middle if least == 1 or min(held(middle)) >= least else None


def groups_problem(groups: Groups, bins: int, least: int) -> str | None:
    """Say what is wrong with groups that somebody sent, or return ``None``.

    Parameters
    ----------
    groups
        Integers, shape (groups, 3).
    bins, least
        What the groups should have been made with.
    """
    start, stop, counts = groups.T
    if not groups.size:
        return None
    borders = groups[:, :2].ravel()
    if borders[0] < 0 or borders[-1] > bins or (stop <= start).any() or (start[1:] < stop[:-1]).any():
        return f"has ranges that are not ordered parts of the bins 0 to {bins - 1}"
    smallest = int(counts.min())
    if smallest < 1:
        return f"has a group of {smallest} samples"
    if smallest < least and groups[0, :2].tolist() != [0, bins]:
        return f"has a group of {smallest} samples, expected at least {least}"
    return None


def samples_in(groups: Groups) -> int:
    """Return how many samples the groups hold."""
    return sum(groups[:, 2].tolist())  # without overflow, whatever somebody sent


def grouped_auc(positives: Iterable[Groups], negatives: Iterable[Groups], bins: int) -> tuple[float, float]:
    """Return the AUC of all samples, as far as their groups tell it, and how far it may be from the true one.

    The true AUC lies within ``auc - error`` and ``auc + error``. The error is a bound: at one end is the AUC that would
    follow if all pairs whose order is not known were in one order.

    Parameters
    ----------
    positives, negatives
        Of each client.
    bins
        What the groups were made with.

    Returns
    -------
    tuple
        The AUC if the samples of each group were spread evenly over the bins of its range, where two in the same bin
        count half; and the error. If every group is a bin, it is half the share of pairs in the same bin. Both are nan
        where a class is missing.
    """
    high, low = (np.concatenate([np.empty((0, 3), np.int64), *groups]) for groups in (positives, negatives))
    pairs = samples_in(high) * samples_in(low)
    if not pairs:
        return math.nan, math.nan
    lowest, highest = _pairs_in_order(low, high) / pairs, 1 - _pairs_in_order(high, low) / pairs
    above, below = _shares(high, bins), _shares(low, bins)
    even = float(above @ (np.cumsum(below) - below / 2))
    auc = min(max(even, lowest), highest)  # as it is, but for rounding
    return auc, max(highest - auc, auc - lowest)


def _shares(groups: Groups, bins: int) -> Vector:
    """Return the share of the samples in each bin, shape (bins,), if those of a group are spread evenly."""
    start, stop, counts = groups.T
    steps = np.zeros(bins + 1)
    np.add.at(steps, start, counts / (stop - start))
    np.subtract.at(steps, stop, counts / (stop - start))
    spread = np.cumsum(steps)[:-1]
    shares: Vector = spread / spread.sum()
    return shares


def _pairs_in_order(lower: Groups, higher: Groups) -> int:
    """Return the number of pairs in which the whole range of the one lies below the whole range of the other."""
    order = np.argsort(lower[:, 1], kind="stable")
    ends = lower[order, 1]
    ended = [0]
    for count in lower[order, 2].tolist():
        ended.append(ended[-1] + count)
    below = np.searchsorted(ends, higher[:, 0], side="right")
    return sum(ended[k] * count for k, count in zip(below.tolist(), higher[:, 2].tolist(), strict=True))
