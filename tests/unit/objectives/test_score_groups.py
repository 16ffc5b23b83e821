"""Groups of scores tell no single sample, and bound the AUC of all clients' samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import expit

from fenchel.common.arrays import Vector
from fenchel.common.errors import PayloadError
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.score_groups import (
    LEVELS,
    NO_PLACES,
    PARTS,
    Groups,
    Places,
    check_groups,
    check_places,
    edges_of,
    further_places,
    grouped_auc,
    samples_in,
    score_groups,
)
from tests.messages import raises

ROUNDING = 1e-12
KINDS = {
    "any": st.floats(-8, 8),
    "many ties": st.sampled_from([-1.0, -0.5, 0.0, 0.5]),
    "saturated": st.sampled_from([-1e308, -800.0, -40.0, 40.0, 41.0, 1e308]),
    "neighbours": st.integers(-3, 3).map(lambda steps: steps * 2.0**-52),  # around the edge of a bin
}
SCORES = st.sampled_from(list(KINDS.values())).flatmap(lambda kind: st.lists(kind, max_size=40))
BINS = st.sampled_from([2, 3, 8, 50, 1024])


def groups(*rows: tuple[int, int, int]) -> Groups:
    return np.array(rows, np.int64).reshape(-1, 3)


def bounded(positives: Sequence[Vector], negatives: Sequence[Vector], bins: int, least: int) -> tuple[float, float]:
    """AUC and error from the scores of each client."""
    high, low = ([score_groups(scores, bins, least) for scores in each] for each in (positives, negatives))
    return grouped_auc(high, low, bins)


@given(SCORES, BINS, st.integers(1, 7))
def test_every_group_holds_enough_samples_and_all_groups_hold_them_all(
    scores: list[float], bins: int, least: int
) -> None:
    found = score_groups(np.array(scores), bins, least)
    check_groups("positives", found, bins, least)
    assert samples_in(found) == len(scores)
    if len(scores) < least:
        assert found.tolist() == ([[0, bins, len(scores)]] if scores else [])
    if len(scores) >= least and scores:
        assert found[:, 2].min() >= least


@given(SCORES, BINS, st.integers(1, 7))
def test_the_samples_of_a_group_have_scores_in_its_range(scores: list[float], bins: int, least: int) -> None:
    ordered, taken = np.sort(np.array(scores)), 0
    for start, stop, count in score_groups(ordered, bins, least).tolist():
        mapped = expit(ordered[taken : taken + count])
        assert mapped.min() >= start / bins - 1e-15
        assert mapped.max() <= stop / bins + 1e-15
        taken += count


@given(st.lists(st.floats(-8, 8), max_size=40), BINS, st.integers(2, 7), st.data())
def test_samples_that_are_fewer_than_a_group_needs_are_told_by_their_number_alone(
    scores: list[float], bins: int, least: int, data: st.DataObject
) -> None:
    few = scores[: least - 1]
    others = data.draw(st.lists(st.floats(-8, 8), min_size=len(few), max_size=len(few)))
    assert np.array_equal(score_groups(np.array(few), bins, least), score_groups(np.array(others), bins, least))


def centres(bins: int) -> Vector:
    """Scores in the middle of each bin."""
    return np.log((np.arange(bins) + 0.5) / (bins - 0.5 - np.arange(bins)))


def test_bins_are_cut_between_parts_first_and_then_in_halves_that_both_hold_enough() -> None:
    counts = np.zeros(128, int)
    # In the middle there would be two below: the cut is beside, after a whole part.
    counts[[6, 40, 66]] = 1, 1, 3
    counts[80:84] = 3, 0, 4, 0  # a part, halved
    counts[120:124] = 6, 0, 0, 0  # another, all in its first bin: not halved, since a half is empty
    found = score_groups(np.repeat(centres(128), counts), 128, 3)
    assert found.tolist() == [[4, 68, 5], [80, 82, 3], [82, 84, 4], [120, 124, 6]]
    assert score_groups(np.repeat(centres(128), counts), 128, 10).tolist() == [[4, 124, 18]]


PLACES = st.lists(st.integers(0, 1023), max_size=60)
"""Bins of samples, of 1024."""


@given(PLACES, st.integers(2, 6), st.data())
def test_where_groups_are_cut_tells_no_more_of_few_samples_than_their_parts_of_the_line(
    bins: list[int], least: int, data: st.DataObject
) -> None:
    found = score_groups(centres(1024)[bins], 1024, least)
    elsewhere = list(bins)
    for start, stop, _ in found.tolist():
        inside = [k for k, b in enumerate(bins) if start <= b < stop]
        if stop - start <= 32:  # within a part: they may as well be all in one bin of it
            for k in inside:
                elsewhere[k] = start
        else:  # several parts: anywhere in the same one
            for k in inside:
                part = bins[k] // 32 * 32
                elsewhere[k] = data.draw(st.integers(part, part + 31))
    assert score_groups(centres(1024)[elsewhere], 1024, least).tolist() == found.tolist()


@given(PLACES, BINS, st.integers(2, 6))
def test_groups_end_only_at_places_that_no_sample_has_chosen(bins: list[int], all_bins: int, least: int) -> None:
    coarse = {k * all_bins // 32 for k in range(33)}
    found = score_groups(centres(1024)[bins], all_bins, least)
    for start, stop, _ in found.tolist():
        if {start, stop} <= coarse:
            continue
        low, high = max(c for c in coarse if c <= start), min(c for c in coarse if c >= stop)
        while (low, high) != (start, stop):  # down by halves from a part
            middle = (low + high) // 2
            assert high - low > 1
            low, high = (low, middle) if stop <= middle else (middle, high)


CLIENT = st.tuples(SCORES, SCORES)


@given(st.lists(CLIENT, min_size=1, max_size=5), BINS, st.integers(1, 7))
@example([([1.0], []), ([], [0.0])], 1024, 1)
@example([([0.0] * 7, [0.0] * 7)], 1024, 5)
def test_the_auc_of_all_samples_lies_within_the_error(
    clients: list[tuple[list[float], list[float]]], bins: int, least: int
) -> None:
    positives = [np.array(high) for high, _ in clients]
    negatives = [np.array(low) for _, low in clients]
    auc, error = bounded(positives, negatives, bins, least)
    high, low = np.concatenate(positives), np.concatenate(negatives)
    pooled = Ranking(np.concatenate([high, low]), np.repeat([True, False], [high.size, low.size]))
    if math.isnan(pooled.auc):
        assert math.isnan(auc)
        assert math.isnan(error)
        return
    assert abs(auc - pooled.auc) <= error + ROUNDING
    assert 0 <= auc <= 1


def test_what_the_groups_leave_open_is_what_the_error_allows() -> None:
    high, low = groups((0, 4, 2), (6, 8, 3)), groups((2, 7, 4))
    auc, error = grouped_auc([high], [low], 9)
    best = Ranking(np.array([2.5] * 2 + [7.5] * 3 + [2.4] * 4), np.repeat([True, False], [5, 4]))
    worst = Ranking(np.array([0.5] * 2 + [6.1] * 3 + [6.5] * 4), best.positive)
    assert (best.auc, worst.auc) == (1, 0)
    assert error == max(auc, 1 - auc)
    # Bins 0 to 3 against 2 to 6, and 6 and 7 against the same, all equally likely.
    assert auc == pytest.approx((2 * (0.5 + 1 + 0.5) / 20 + 3 * (4.5 / 5 + 1) / 2) / 5)
    apart = grouped_auc([groups((4, 5, 3))], [groups((0, 4, 2), (5, 9, 6))], 9)
    assert apart == (0.25, 0)


def test_the_error_is_half_the_share_of_pairs_in_the_same_bin() -> None:
    draw = np.random.default_rng(5)
    scores = {True: draw.normal(1, 1, 400), False: draw.normal(-1, 1, 700)}
    bins = {y: np.minimum((64 * expit(each)).astype(int), 63) for y, each in scores.items()}
    same = np.mean(bins[True][:, None] == bins[False])
    auc, error = bounded([scores[True]], [scores[False]], 64, 1)
    pooled = Ranking(np.concatenate([bins[True], bins[False]]).astype(float), np.repeat([True, False], [400, 700]))
    assert error == pytest.approx(same / 2, abs=ROUNDING)
    assert auc == pytest.approx(pooled.auc, abs=ROUNDING)


WRONG = {
    "beyond the last bin": groups((0, 17, 9)),
    "before the first": groups((-1, 4, 9)),
    "empty range": groups((3, 3, 9)),
    "backwards": groups((5, 3, 9)),
    "overlap": groups((0, 5, 9), (4, 8, 9)),
    "disorder": groups((8, 9, 9), (0, 5, 9)),
    "negative count": groups((0, 5, 9), (5, 8, -9)),
    "no samples": groups((0, 16, 0)),
    "too few": groups((0, 5, 9), (5, 8, 2)),
    "too few alone": groups((0, 15, 2)),
    "extreme": groups((-(2**63), 2**63 - 1, 2**63 - 1)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_groups_that_nobody_can_have_made_are_refused(wrong: Groups) -> None:
    with raises(PayloadError, client="a"):
        check_groups("positives", wrong, 16, 3, client="a")


def test_counts_do_not_overflow() -> None:
    huge = groups((0, 4, 2**62), (4, 8, 2**62), (8, 9, 2**62))
    assert samples_in(huge) == 3 * 2**62
    auc, error = grouped_auc([huge], [groups((4, 8, 2**62))], 9)
    assert (auc, error) == pytest.approx((0.5, 1 / 6))


def divided(positives: Sequence[Vector], negatives: Sequence[Vector], least: int = 5) -> list[tuple[float, float]]:
    """AUC and error by the line as it is, and then each time after it was divided further."""
    places, found = NO_PLACES, []
    while True:
        high, low = ([score_groups(s, 1024, least, places) for s in each] for each in (positives, negatives))
        edges = edges_of(1024, places)
        found.append(grouped_auc(high, low, edges.size + 1))
        further = further_places(high, low, edges)
        if further is None or len(places) == LEVELS:
            return found
        places = np.vstack([places, further])


CONCENTRATED = {
    "in a part of the line": ((0.30, 0.01), (0.27, 0.008)),
    "in a thousandth of it": ((0.3, 1e-4), (0.2997, 1e-4)),
    "at an end": ((14.0, 2.0), (8.0, 2.0)),
    "beyond it": ((900.0, 20.0), (830.0, 20.0)),
    "about nothing": ((1e-5, 5e-6), (-1e-5, 5e-6)),
}


@pytest.mark.parametrize("samples", [100, 400])
@pytest.mark.parametrize(("high", "low"), CONCENTRATED.values(), ids=CONCENTRATED.keys())
def test_where_scores_concentrate_the_line_is_divided_until_the_auc_is_known(
    high: tuple[float, float], low: tuple[float, float], samples: int
) -> None:
    draw = np.random.default_rng(8)
    positives = [draw.normal(*high, samples) for _ in range(5)]
    negatives = [draw.normal(*low, samples) for _ in range(5)]
    pooled = np.concatenate([*positives, *negatives])
    true = Ranking(pooled, np.arange(pooled.size) < 5 * samples).auc
    found = divided(positives, negatives)
    assert found[0][1] > 0.15, "as it was"
    assert abs(found[-1][0] - true) < 0.015
    assert found[-1][1] < 0.05
    for auc, error in found:
        assert abs(auc - true) <= error + ROUNDING


def test_a_line_on_which_scores_are_spread_is_not_divided_further() -> None:
    draw = np.random.default_rng(9)
    positives = [draw.normal(1, 1, 200) for _ in range(5)]
    negatives = [draw.normal(-1, 1, 200) for _ in range(5)]
    assert len(divided(positives, negatives)) == 1


PLACE = st.one_of(st.floats(-8, 8), st.sampled_from([-0.5, 0.0, 2.0**-52, 40.0, 1e300]))
FURTHER = st.lists(st.lists(PLACE, min_size=PARTS - 1, max_size=PARTS - 1).map(sorted), min_size=1, max_size=3).map(
    np.array
)


@given(SCORES, BINS, st.integers(1, 7), FURTHER)
def test_groups_of_a_line_that_is_divided_further_lie_in_those_of_the_line_as_it_was(
    scores: list[float], bins: int, least: int, places: Places
) -> None:
    coarse = score_groups(np.array(scores), bins, least, places[:-1])
    fine = score_groups(np.array(scores), bins, least, places)
    finer = edges_of(bins, places)
    check_groups("positives", fine, finer.size + 1, least)
    before = edges_of(bins, places[:-1])
    index = [0, *(np.searchsorted(finer, before) + 1).tolist(), finer.size + 1]
    inside = [
        fine[(index[start] <= fine[:, 0]) & (fine[:, 1] <= index[stop]), 2].sum() for start, stop, _ in coarse.tolist()
    ]
    assert inside == coarse[:, 2].tolist()
    assert samples_in(fine) == len(scores)


def test_places_that_divide_no_line_are_refused() -> None:
    check_places(np.zeros((LEVELS, PARTS - 1)))
    for wrong in (np.zeros((LEVELS + 1, PARTS - 1)), np.zeros((1, PARTS)), np.full((1, PARTS - 1), np.nan)):
        with raises(PayloadError, phase="fenchel.evaluate"):
            check_places(wrong, phase="fenchel.evaluate")
