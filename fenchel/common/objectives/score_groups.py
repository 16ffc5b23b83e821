"""Area under the ROC curve (AUC) of the samples of many clients, estimated from histograms of scores.

All clients use the same bins, which divide the real line of scores. A client reports the numbers of its positive and
negative samples with scores in ranges of bins, its groups. A reported range contains at least ``least`` samples, or
all samples of the class. The groups of all clients determine an estimate of the AUC of all samples, and bounds. The
order of a positive and a negative sample is known if their ranges are disjoint, and unknown if the ranges overlap.

With ``least`` above 1, a reply locates fewer than ``least`` samples only to within a 32nd part of the line. The cuts
can show that *some* sample lies in one of these parts. Within a part, groups reveal that a range contains ``least`` or
more samples, but never that a given half of the range contains one. If ``least`` or more samples have scores in one
bin, a group may reveal the bin.

If scores concentrate, one part of the line contains many samples. The server then derives further cut points from the
groups of all clients. Each interval between these cut points contains about a 32nd of the samples of either class. A
client also cuts its groups at these points, as it does between parts. The new groups are thus subsets of the old
groups, so both together reveal no more than the new groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, Unpack

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.errors import PayloadError, Place

BINS = 1024
"""Number of bins before any refinement, which have equal width after a sigmoid."""

PARTS = 32
"""Number of parts of the line, of equal width up to whole bins. Ranges are cut between parts before they are halved."""

LEVELS = 4
"""Largest number of refinements of the bins."""

CROWDED = 4
"""Ratio of a part's fraction of class-balanced samples to 1 / PARTS, above which the bins are refined."""

Groups: TypeAlias = NDArray[np.int64]
"""Groups of the samples of one client and class, shape (groups, 3), with the columns first bin, bin after the last bin,
and number of samples. The ranges are ordered and disjoint, and no sample lies between ranges."""


Places: TypeAlias = NDArray[np.float64]
"""Further cut points of the line of scores, shape (levels, PARTS - 1), with one row for each refinement in order."""

NO_PLACES: Places = np.empty((0, PARTS - 1))


def edges_of(bins: int, places: Places) -> Vector:
    """Return the increasing edges between all bins: those before any refinement, and the further cut points.

    The logistic function of the edges before any refinement is k / bins for k = 1, ..., bins - 1.
    """
    return np.unique(np.concatenate([scipy.special.logit(np.arange(1, bins) / bins), places.ravel()]))


def check_places(places: Places, **place: Unpack[Place]) -> None:
    """Check further cut points that were received from the server.

    Raises
    ------
    PayloadError
        If the cut points have an unexpected shape or are not finite.
    """
    what = "the bin edges between the ranges of scores"
    if places.ndim != 2 or places.shape[1] != PARTS - 1 or len(places) > LEVELS:
        raise PayloadError(f"{what} have shape {places.shape}, expected at most {LEVELS} rows of {PARTS - 1}", **place)
    if not np.isfinite(places).all():
        raise PayloadError(f"{what} are not all finite", **place)


def score_groups(scores: Vector, bins: int, least: int, places: Places = NO_PLACES) -> Groups:
    """Divide scores into groups.

    The range of all bins is first cut recursively between its :data:`PARTS`. Each cut is the one nearest to the middle
    of the range that leaves either ``least`` samples or none on each side. A single part is then halved recursively
    while both halves contain ``least`` samples. Empty halves are not cut off within a part, because an uncut range
    would then reveal a sample in each half. A range without a further cut is a group.

    With ``least`` equal to 1 nothing is hidden, so empty halves are cut off, and each group is a single bin. Fewer
    samples than ``least`` form one group with the range of all bins, which reveals only their number. Finally, groups
    are cut at the further cut points, level by level, by the rule for cuts between parts.

    Parameters
    ----------
    scores
        Scores of the samples, shape (n,), finite.
    bins
        Number of bins before any refinement. Bin j contains the scores s with ``j <= bins / (1 + exp(-s)) < j + 1``.
    least
        Smallest number of samples in a group.
    places
        Further cut points. The ranges of groups then refer to all bins of :func:`edges_of`.
    """
    # Edges are mapped to the scale of scores, because rounding could reorder scores mapped to (0, 1).
    edges = scipy.special.logit(np.arange(1, bins) / bins)
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
    """Return the cumulative number of scores before each bin, and before the end, shape (bins + 1,)."""
    counts = np.bincount(np.searchsorted(edges, scores, side="right"), minlength=edges.size + 1)
    return [0, *np.cumsum(counts).tolist()]


def _divided(ranges: Iterable[tuple[int, int]], cut: Callable[[int, int], int | None]) -> list[tuple[int, int]]:
    """Cut ranges recursively with ``cut``, and return the uncut ranges in order."""
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
    """Return the edge nearest to the middle of a range that leaves ``least`` samples or none on each side."""
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
    """Return the bin at which a range is cut, or ``None`` if no cut is allowed.

    Parameters
    ----------
    before
        Cumulative number of samples before each bin, shape (bins + 1,).
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
    """Check groups that were received from a client.

    Parameters
    ----------
    name
        Name of the groups in the reply.
    groups
        Groups, integers of shape (groups, 3).
    bins
        Number of bins.
    least
        Smallest number of samples in a group.
    **place
        Round, phase and client, for errors.

    Raises
    ------
    PayloadError
        If the ranges are not ordered, disjoint ranges of bins, or if a group contains too few samples.
    """
    start, stop, counts = groups.T
    if not groups.size:
        return
    borders = groups[:, :2].ravel()
    if borders[0] < 0 or borders[-1] > bins or (stop <= start).any() or (start[1:] < stop[:-1]).any():
        raise PayloadError(
            f"the ranges of {name!r} are not disjoint, increasing ranges of the bins 0 to {bins - 1}", **place
        )
    smallest = int(counts.min())
    if smallest < 1:
        raise PayloadError(f"the smallest group of {name!r} has {smallest} samples, expected at least 1", **place)
    if smallest < least and groups[0, :2].tolist() != [0, bins]:
        raise PayloadError(f"the smallest group of {name!r} has {smallest} samples, expected at least {least}", **place)


def samples_in(groups: Groups) -> int:
    """Return the total number of samples in the groups."""
    return sum(groups[:, 2].tolist())  # Python integers cannot overflow, even for malicious counts


def grouped_auc(positives: Iterable[Groups], negatives: Iterable[Groups], bins: int) -> tuple[float, float]:
    """Return an estimate of the AUC of all samples from their groups, and a bound on the estimate's error.

    The true AUC lies between ``auc - error`` and ``auc + error``. The bound corresponds to the extreme case in which
    all pairs of unknown order have the same order.

    Returns
    -------
    tuple[float, float]
        AUC for samples spread uniformly over the bins of each group's range, with pairs in one bin counted half, and
        the error bound. If every group is one bin, the error is half the fraction of pairs in a common bin. Both
        numbers are nan if a class is missing.
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
    """Return the fraction of samples in each bin, shape (bins,), if each group is spread uniformly over its range."""
    start, stop, counts = groups.T
    steps = np.zeros(bins + 1)
    np.add.at(steps, start, counts / (stop - start))
    np.subtract.at(steps, stop, counts / (stop - start))
    spread = np.cumsum(steps)[:-1]
    return spread / spread.sum()


def _pairs_in_order(lower: Groups, higher: Groups) -> int:
    """Return the number of pairs of a lower and a higher sample whose ranges are disjoint and in this order."""
    order = np.argsort(lower[:, 1], kind="stable")
    ends = lower[order, 1]
    ended = [0]
    for count in lower[order, 2].tolist():
        ended.append(ended[-1] + count)
    below = np.searchsorted(ends, higher[:, 0], side="right")
    return sum(ended[k] * count for k, count in zip(below.tolist(), higher[:, 2].tolist(), strict=True))


def further_places(positives: Iterable[Groups], negatives: Iterable[Groups], edges: Vector) -> Vector | None:
    """Return further cut points, shape (PARTS - 1,), or ``None`` if a class has no samples or no part is crowded.

    A part of the line is crowded if it has more than ``CROWDED / PARTS`` of the class-balanced samples.

    The cut points are quantiles of the class-balanced samples, estimated from the groups. An unbounded bin is assumed
    to extend to 16 times its finite edge, so that saturated scores are separated.

    Parameters
    ----------
    edges
        Edges of the bins of the groups, shape (bins - 1,), increasing.
    """
    bins = edges.size + 1
    classes = [np.concatenate([np.empty((0, 3), np.int64), *groups]) for groups in (positives, negatives)]
    if not all(map(samples_in, classes)):
        return None
    shares = sum(_shares(groups, bins) for groups in classes) / 2
    ends = np.concatenate([[min(16 * edges[0], -16.0)], edges, [max(16 * edges[-1], 16.0)]])
    reached = np.concatenate([[0.0], np.cumsum(shares)])
    parts = np.arange(1, PARTS) / PARTS
    coarse = np.interp(scipy.special.logit(parts), ends, reached)
    if np.diff(coarse, prepend=0.0, append=1.0).max() <= CROWDED / PARTS:
        return None
    # Beyond the outermost edges, bin edges grow geometrically: asinh is logarithmic there, and linear near 0.
    places: Vector = np.unique(np.sinh(np.interp(parts, reached, np.arcsinh(ends))))
    return np.concatenate([places, np.full(PARTS - 1 - places.size, places[-1])])
