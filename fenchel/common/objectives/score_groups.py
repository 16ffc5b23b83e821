"""Area under the ROC curve of samples on many clients, which report their scores in groups.

Bins divide the line of scores, equally for all clients. A client reports the numbers of its positive and of its
negative samples with scores in ranges of bins. A reported range has at least ``least`` samples, or all samples. From
the ranges of all clients follow an estimate of the AUC of all samples, and bounds: the order of a positive and a
negative sample is known if their ranges are disjoint, and unknown if they overlap.

With ``least`` above 1, a reply locates fewer than ``least`` samples no more exactly than to a 32nd part of the line:
the cuts can show that *some* sample lies in one of these parts. Within a part, groups show that ``least`` or more
samples are in a range, and never that any of them is in one half of it. If ``least`` or more samples have scores in the
same bin, their bin may be revealed.

If scores concentrate, a part of the line has many of them. The server then derives further places from the groups of
all clients, which divide the line: between two places lies about a 32nd of the samples of either class. A client cuts
its groups at these places, too, as between parts. Its new groups therefore lie in the old ones, and both together
reveal no more than the new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from fenchel.common.arrays import Vector
from fenchel.common.errors import PayloadError, Place

BINS = 1024
"""Bins of the line before it is divided further: of equal width after a sigmoid."""

PARTS = 32
"""Parts of the line, all of the same width but for whole bins, at whose ends it is cut before anything is halved."""

LEVELS = 4
"""Largest number of times that the line is divided further."""

CROWDED = 4
"""A part of the line with more than so many times its share of the samples, both classes counting the same, asks for
further places."""

Groups: TypeAlias = NDArray[np.int64]
"""Samples of one client and class by ranges of scores, shape (groups, 3): the first bin of a range, the bin after its
last, and how many samples have scores there. Ranges are in order and do not overlap; in between there are none."""


Places: TypeAlias = NDArray[np.float64]
"""Scores at which the line is divided further, shape (levels, PARTS - 1); each level follows the one before."""

NO_PLACES: Places = np.empty((0, PARTS - 1))


def edges_of(bins: int, places: Places) -> Vector:
    """Return the scores that divide the line into bins, in order: those of the logistic curve, and further places."""
    return np.unique(np.concatenate([logit(np.arange(1, bins) / bins), places.ravel()]))


def check_places(places: Places, **place: Unpack[Place]) -> None:
    """Check places that the server sent.

    Raises
    ------
    PayloadError
        They are of another shape, or not finite.
    """
    what = "the places that divide the line of scores are"
    if places.ndim != 2 or places.shape[1] != PARTS - 1 or len(places) > LEVELS:
        raise PayloadError(f"{what} of shape {places.shape}, expected at most {LEVELS} rows of {PARTS - 1}", **place)
    if not np.isfinite(places).all():
        raise PayloadError(f"{what} not finite", **place)


def score_groups(scores: Vector, bins: int, least: int, places: Places = NO_PLACES) -> Groups:
    """Divide scores into groups.

    The range of all bins is cut between two of its :data:`PARTS`, nearest to the middle of all places that leave
    ``least`` samples or none on either side; and so is each range that follows, down to single parts. A part
    is halved, and each half again, as long as both hold ``least``: were an empty half cut off, a range that
    is not halved would tell that there is a sample in either half. A range that cannot be cut is a group.
    With ``least`` 1, where there is nothing to hide, empty halves are cut off and a group is a bin. Where
    there are fewer samples than ``least``, they are one group in the range of all bins, which tells only
    their number. What comes out is cut at the further places, level by level, by the rule for places between
    parts.

    Parameters
    ----------
    scores
        Finite, shape (n,).
    bins
        Number of bins. Bin j has the scores s with ``j <= bins / (1 + exp(-s)) < j + 1``.
    least
        Smallest number of samples in a group.
    places
        Further places that divide the line. The ranges of groups then count all bins of :func:`edges_of`.
    """
    # Edges are mapped to the scale of scores, because rounding could reorder scores mapped to (0, 1).
    edges = logit(np.arange(1, bins) / bins)
    before = _before(scores, edges)
    ranges = _divided([(0, bins)], lambda start, stop: _cut(before, start, stop, least))
    if len(places):
        finer = edges_of(bins, places)
        index = [0, *(np.searchsorted(finer, edges) + 1).tolist(), len(finer) + 1]
        before = _before(scores, finer)
        ranges = [(index[start], index[stop]) for start, stop in ranges]
        for level in places:
            cuts = np.unique(np.searchsorted(finer, level) + 1).tolist()
            ranges = _divided(ranges, partial(_coarse_cut, before, cuts, least))
    groups = [(start, stop, before[stop] - before[start]) for start, stop in ranges]
    return np.array([group for group in groups if group[2]], np.int64).reshape(-1, 3)


def _before(scores: Vector, edges: Vector) -> list[int]:
    """Return how many scores lie before each bin, and before the end, shape (bins + 1,)."""
    counts = np.bincount(np.searchsorted(edges, scores, side="right"), minlength=edges.size + 1)
    return [0, *np.cumsum(counts).tolist()]


def _divided(ranges: Iterable[tuple[int, int]], cut: Callable[[int, int], int | None]) -> list[tuple[int, int]]:
    """Cut ranges, and what comes out, wherever they can be cut; in order."""
    found, pending = [], list(ranges)[::-1]
    while pending:
        start, stop = pending.pop()
        where = cut(start, stop)
        if where is None:
            found.append((start, stop))
        else:
            pending += [(where, stop), (start, where)]
    return found


def _coarse_cut(before: Sequence[int], edges: Iterable[int], least: int, start: int, stop: int) -> int | None:
    """Return the edge nearest to the middle of a range that leaves ``least`` samples or none on either side."""
    if before[stop] == before[start]:
        return None
    # Candidate edges and their order are fixed, so that no cut depends on individual samples.
    inside = sorted((edge for edge in edges if start < edge < stop), key=lambda edge: abs(2 * edge - start - stop))
    return next(
        (
            edge
            for edge in inside
            if all(n == 0 or n >= least for n in (before[edge] - before[start], before[stop] - before[edge]))
        ),
        None,
    )


def _cut(before: Sequence[int], start: int, stop: int, least: int) -> int | None:
    """Return where a range is cut, if it can be.

    Parameters
    ----------
    before
        How many samples lie before each bin, shape (bins + 1,).
    """
    bins = len(before) - 1
    edges = [k * bins // PARTS for k in range(1, PARTS)]
    if before[stop] == before[start]:
        return None
    if any(start < edge < stop for edge in edges):
        return _coarse_cut(before, edges, least, start, stop)
    if stop - start == 1:
        return None
    middle = (start + stop) // 2
    fewer = min(before[middle] - before[start], before[stop] - before[middle])
    return middle if least == 1 or fewer >= least else None


def check_groups(name: str, groups: Groups, bins: int, least: int, **place: Unpack[Place]) -> None:
    """Check groups that a client sent.

    Parameters
    ----------
    name
        Name of the groups in the reply.
    groups
        Groups, integers of shape (groups, 3).
    bins
        Number of bins that divide the line.
    least
        Smallest number of samples in a group.
    **place
        Round, phase and client, for errors.

    Raises
    ------
    PayloadError
        Their ranges are not ordered parts of the bins, or one holds too few samples.
    """
    start, stop, counts = groups.T
    if not groups.size:
        return
    borders = groups[:, :2].ravel()
    if borders[0] < 0 or borders[-1] > bins or (stop <= start).any() or (start[1:] < stop[:-1]).any():
        raise PayloadError(f"{name!r} has ranges that are not ordered parts of the bins 0 to {bins - 1}", **place)
    smallest = int(counts.min())
    if smallest < 1:
        raise PayloadError(f"{name!r} has a group of {smallest} samples", **place)
    if smallest < least and groups[0, :2].tolist() != [0, bins]:
        raise PayloadError(f"{name!r} has a group of {smallest} samples, expected at least {least}", **place)


def samples_in(groups: Groups) -> int:
    """Return how many samples the groups hold."""
    return sum(groups[:, 2].tolist())  # Python integers cannot overflow, even for malicious counts


def grouped_auc(positives: Iterable[Groups], negatives: Iterable[Groups], bins: int) -> tuple[float, float]:
    """Return the AUC of all samples, as far as their groups tell it, and how far it may be from the true one.

    The true AUC lies within ``auc - error`` and ``auc + error``. The error is a bound: at one end is the AUC
    that would follow if all pairs whose order is not known were in one order.

    Returns
    -------
    tuple[float, float]
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
    auc = min(max(even, lowest), highest)  # the bounds can be violated by rounding only
    return auc, max(highest - auc, auc - lowest)


def _shares(groups: Groups, bins: int) -> Vector:
    """Return the share of the samples in each bin, shape (bins,), if those of a group are spread evenly."""
    start, stop, counts = groups.T
    steps = np.zeros(bins + 1)
    np.add.at(steps, start, counts / (stop - start))
    np.subtract.at(steps, stop, counts / (stop - start))
    spread = np.cumsum(steps)[:-1]
    return spread / spread.sum()


def _pairs_in_order(lower: Groups, higher: Groups) -> int:
    """Return the number of pairs in which the whole range of the one lies below the whole range of the other."""
    order = np.argsort(lower[:, 1], kind="stable")
    ends = lower[order, 1]
    ended = [0]
    for count in lower[order, 2].tolist():
        ended.append(ended[-1] + count)
    below = np.searchsorted(ends, higher[:, 0], side="right")
    return sum(ended[k] * count for k, count in zip(below.tolist(), higher[:, 2].tolist(), strict=True))


def further_places(positives: Iterable[Groups], negatives: Iterable[Groups], edges: Vector) -> Vector | None:
    """Return where else to divide the line, shape (PARTS - 1,), or ``None`` where no part of it holds too much.

    The places are quantiles of all samples, both classes counting the same, as far as the groups tell. A bin
    without an end is taken to reach 16 times as far from 0 as the edge that it begins at, so that saturated
    scores come apart.

    Parameters
    ----------
    edges
        What divides the line into the bins of the groups.
    """
    bins = edges.size + 1
    classes = [np.concatenate([np.empty((0, 3), np.int64), *groups]) for groups in (positives, negatives)]
    if not all(map(samples_in, classes)):
        return None
    shares = sum(_shares(groups, bins) for groups in classes) / 2
    ends = np.concatenate([[min(16 * edges[0], -16.0)], edges, [max(16 * edges[-1], 16.0)]])
    reached = np.concatenate([[0.0], np.cumsum(shares)])
    parts = np.arange(1, PARTS) / PARTS
    coarse = np.interp(logit(parts), ends, reached)
    if np.diff(coarse, prepend=0.0, append=1.0).max() <= CROWDED / PARTS:
        return None
    # Beyond the outermost edges, bin edges grow geometrically: asinh is logarithmic there, and linear near 0.
    places: Vector = np.unique(np.sinh(np.interp(parts, reached, np.arcsinh(ends))))
    return np.concatenate([places, np.full(PARTS - 1 - places.size, places[-1])])
