"""Cohorts have the size and the distribution that the settings say, and depend on nothing but the key."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import (
    AllClients,
    Bernoulli,
    Cyclic,
    FixedSize,
    Fraction,
    Participation,
    Sampler,
    Weighted,
)
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.sampling import SmallCohortWarning, draw, fraction_size
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises
from tests.slow import rest_slow

DRAWS = 4000
SIGNIFICANT = 1e-4
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


def drawn(sampler: Sampler, t: int, weights: np.ndarray = WEIGHTS, seed: int = 5) -> tuple[int, ...]:
    return tuple(draw(sampler, weights, t, generator(seed, "server", t, "cohort")))


def many(sampler: Sampler) -> Counter[tuple[int, ...]]:
    return Counter(drawn(sampler, t) for t in range(1, DRAWS + 1))


def fits(observed: list[int], expected: list[float]) -> bool:
    total = sum(expected)
    return float(chisquare(observed, [DRAWS * each / total for each in expected]).pvalue) > SIGNIFICANT


SAMPLERS: list[Sampler] = [
    AllClients(),
    FixedSize(size=2),
    Fraction(fraction=0.5),
    Bernoulli(probability=0.4),
    Cyclic(groups=3),
    Weighted(size=2),
    Weighted(size=7, replacement=True),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.kind)
def test_a_draw_is_increasing_and_repeats_itself_for_the_same_key(sampler: Sampler) -> None:
    for t in range(1, 30):
        cohort = drawn(sampler, t)
        assert cohort
        assert list(cohort) == sorted(cohort)
        assert set(cohort) <= set(range(4))
        assert drawn(sampler, t) == cohort
        if not (isinstance(sampler, Weighted) and sampler.replacement):
            assert len(set(cohort)) == len(cohort)


def test_all_clients_are_all() -> None:
    assert drawn(AllClients(), 3) == (0, 1, 2, 3)


def test_every_subset_of_fixed_size_is_equally_likely() -> None:
    counted = many(FixedSize(size=2))
    subsets = list(combinations(range(4), 2))
    assert set(counted) == set(subsets)
    assert fits([counted[subset] for subset in subsets], [1.0] * 6)


@given(fraction=st.floats(0.001, 1.0), n=st.integers(1, 300))
def test_a_fraction_is_rounded_half_up_to_at_least_one(fraction: float, n: int) -> None:
    size = fraction_size(Fraction(fraction=fraction), n)
    assert 1 <= size <= n
    assert size == 1 or abs(size - fraction * n) <= 0.5
    assert len(drawn(Fraction(fraction=fraction), 1, np.ones(n))) == size


@pytest.mark.parametrize(("fraction", "n", "size"), [(0.5, 5, 3), (0.1, 4, 1), (0.1, 25, 3), (1.0, 9, 9)])
def test_halves_are_rounded_up(fraction: float, n: int, size: int) -> None:
    assert fraction_size(Fraction(fraction=fraction), n) == size


def test_bernoulli_draws_each_client_independently_and_never_nobody() -> None:
    p = 0.4
    counted = many(Bernoulli(probability=p))
    subsets = [subset for size in range(1, 5) for subset in combinations(range(4), size)]
    assert () not in counted
    assert fits(
        [counted[subset] for subset in subsets], [p ** len(subset) * (1 - p) ** (4 - len(subset)) for subset in subsets]
    )


def test_groups_take_turns_and_differ_by_one_client_at_most() -> None:
    sampler = Cyclic(groups=3)
    assert [drawn(sampler, t) for t in range(1, 8)] == [(0, 1), (2,), (3,), (0, 1), (2,), (3,), (0, 1)]
    wide = [drawn(sampler, t, np.ones(11)) for t in (1, 2, 3)]
    assert sorted(sum(wide, ())) == list(range(11))
    assert sorted(map(len, wide)) == [3, 4, 4]


def test_weighted_draws_with_replacement_are_proportional_to_the_weights() -> None:
    counted = Counter(client for cohort in many(Weighted(size=1, replacement=True)).elements() for client in cohort)
    assert fits([counted[client] for client in range(4)], list(WEIGHTS))
    assert any(len(set(cohort)) < 3 for cohort in many(Weighted(size=3, replacement=True)))


def test_weighted_draws_without_replacement_follow_successive_sampling() -> None:
    counted = many(Weighted(size=2))
    share = WEIGHTS / WEIGHTS.sum()
    subsets = list(combinations(range(4), 2))
    expected = [share[i] * share[j] / (1 - share[i]) + share[j] * share[i] / (1 - share[j]) for i, j in subsets]
    assert fits([counted[subset] for subset in subsets], expected)


def test_a_client_without_weight_is_never_drawn() -> None:
    for t in range(1, 50):
        assert drawn(Weighted(size=2), t, np.array([1.0, 0.0, 1.0])) == (0, 2)


@pytest.mark.parametrize(
    ("sampler", "weights", "key"),
    [
        (FixedSize(size=5), [1.0] * 4, "participation.sampler.size"),
        (Weighted(size=3), [1.0, 0.0, 1.0, 0.0], "participation.sampler.size"),
        (Cyclic(groups=5), [1.0] * 4, "participation.sampler.groups"),
        (Weighted(size=1), [0.0, 0.0], "participation.sampler"),
        (Weighted(size=1), [1.0, -1.0], "participation.sampler"),
        (Weighted(size=1), [1.0, np.nan], "participation.sampler"),
        (Weighted(size=1), [1.0, np.inf], "participation.sampler"),
    ],
)
def test_what_cannot_be_drawn_is_refused(sampler: Sampler, weights: list[float], key: str) -> None:
    with raises(SettingsError, key=key):
        drawn(sampler, 1, np.array(weights))


@pytest.mark.parametrize(
    ("sampler", "t", "cohort"),
    [
        (FixedSize(size=5), 1, (0, 1, 2)),
        (FixedSize(size=3), 1, (0, 1, 2)),
        (Weighted(size=5), 1, (0, 1, 2)),
        (Cyclic(groups=5), 2, (1,)),
        (Cyclic(groups=5), 4, (0,)),
    ],
)
def test_after_losses_all_that_are_left_take_part(sampler: Sampler, t: int, cohort: tuple[int, ...]) -> None:
    random = generator(5, "server", t, "cohort")
    assert tuple(draw(sampler, np.array([1.0, 2.0, 3.0]), t, random, lost=2)) == cohort


@pytest.mark.parametrize("sampler", [FixedSize(size=6), Weighted(size=6), Cyclic(groups=6)])
def test_losses_do_not_excuse_more_clients_than_there_ever_were(sampler: Sampler) -> None:
    with raises(SettingsError):
        draw(sampler, np.ones(3), 1, generator(5, "server", 1, "cohort"), lost=2)


def drawn_without(absent: list[int], sampler: Sampler, t: int, weights: np.ndarray = WEIGHTS) -> tuple[int, ...]:
    return tuple(draw(sampler, weights, t, generator(5, "server", t, "cohort"), absent=absent))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.kind)
def test_where_nobody_is_absent_draws_are_those_of_a_plain_choice(sampler: Sampler) -> None:
    for t in range(1, 30):
        random = generator(5, "server", t, "cohort")
        match sampler:
            case FixedSize() | Fraction():
                expected = random.choice(4, 2, replace=False)
            case Weighted():
                expected = random.choice(4, sampler.size, sampler.replacement, WEIGHTS / WEIGHTS.sum())
            case _:
                expected = np.array(drawn(sampler, t))
        assert drawn_without([], sampler, t) == tuple(sorted(expected.tolist()))


@pytest.mark.slow
def test_the_places_of_the_absent_go_to_the_others_each_as_likely_as_before() -> None:
    rounds = range(1, DRAWS + 1)
    counted = Counter(drawn_without([1], FixedSize(size=2), t) for t in rounds)
    subsets = [(0, 2), (0, 3), (2, 3)]
    assert set(counted) == set(subsets)
    assert fits([counted[subset] for subset in subsets], [1.0] * 3)
    single = Counter(drawn_without([1], Weighted(size=1), t)[0] for t in rounds)
    assert fits([single[client] for client in (0, 2, 3)], list(WEIGHTS[[0, 2, 3]]))
    repeated = Counter(drawn_without([1], Weighted(size=1, replacement=True), t)[0] for t in rounds)
    assert fits([repeated[client] for client in (0, 2, 3)], list(WEIGHTS[[0, 2, 3]]))


def test_a_fraction_is_one_of_all_clients_and_the_absent_fill_up_what_the_others_leave() -> None:
    cohorts = {drawn_without([0, 1, 2], Fraction(fraction=0.5), t) for t in range(1, 60)}
    assert cohorts == {(0, 3), (1, 3), (2, 3)}
    assert {drawn_without([0, 1], Weighted(size=3), t) for t in range(1, 60)} == {(0, 2, 3), (1, 2, 3)}


@pytest.mark.parametrize("sampler", rest_slow(SAMPLERS, 2), ids=lambda sampler: sampler.kind)
def test_where_all_are_absent_all_are_drawn_as_if_nobody_was(sampler: Sampler) -> None:
    everybody = Counter(drawn_without([0, 1, 2, 3], sampler, t) for t in range(1, 200))
    assert {len(cohort) for cohort in everybody} == {len(cohort) for cohort in many(sampler)}


@pytest.mark.parametrize("sampler", [AllClients(), Bernoulli(probability=0.4), Cyclic(groups=3)])
def test_where_there_are_no_places_to_be_taken_nothing_changes(sampler: Sampler) -> None:
    for t in range(1, 30):
        assert drawn_without([1, 3], sampler, t) == drawn(sampler, t)


def test_one_without_weight_is_not_drawn_for_one_that_is_absent() -> None:
    weights = np.array([1.0, 0.0, 2.0, 3.0])
    for t in range(1, 50):
        assert drawn_without([0], Weighted(size=3), t, weights) == (0, 2, 3)
        assert 0 not in drawn_without([0], Weighted(size=2), t, weights)
        assert set(drawn_without([0, 2, 3], Weighted(size=1, replacement=True), t, weights)) <= {0, 2, 3}


def test_people_are_told_once_after_each_loss(caplog: pytest.LogCaptureFixture) -> None:
    members = {name: ClientRecord(name, pb.ShardDescription(samples=2)) for name in "abcd"}
    fleet = Fleet(
        members=members, seed=5, participation=Participation(sampler=FixedSize(size=3), on_lost_state="continue")
    )
    sizes = []
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        for fleet.round, lost in enumerate(["", "a", "", "c", "", ""], 1):
            if lost:
                members[lost].lost = "its disk broke"
            sizes.append(len(fleet.sample()))
            fleet.sample(draw_name="again")
    assert sizes == [3, 3, 3, 2, 2, 2]
    assert caplog.messages == [
        "participation.sampler: the settings ask for 3 clients a round, but 2 of 4 clients are lost or have spent "
        "their privacy budgets; from round 4 on the run continues with 2"
    ]


def test_people_are_told_nothing_where_no_number_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    shortage = SmallCohortWarning()
    for sampler in (AllClients(), Fraction(fraction=0.9), Weighted(size=9, replacement=True)):
        shortage.tell(sampler, 2, 2, 1)
    assert not caplog.messages
    shortage.tell(Cyclic(groups=3), 2, 2, 7)
    assert (
        "3 groups, but 2 of 4 clients are lost or have spent their privacy budgets; from round 7 on the run continues "
        "with 2" in caplog.text
    )


def test_rounds_and_seeds_draw_differently() -> None:
    sampler = FixedSize(size=5)
    cohorts = {drawn(sampler, t, np.ones(40), seed) for t in range(20) for seed in range(5)}
    assert len(cohorts) == 100


def test_a_run_whose_clients_are_all_lost_says_how_it_can_go_on() -> None:
    members = {name: ClientRecord(name, lost="its journal is gone") for name in "abcd"}
    fleet = Fleet(members=members, seed=5, participation=Participation(on_lost_state="continue"), round=9)
    with raises(RunStoppedError, round=9):
        fleet.sample()
