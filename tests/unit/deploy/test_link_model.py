"""The model of a link: nothing comes early, nothing is reordered, nothing is quicker than its bandwidth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.randomness import generator
from fenchel.common.settings.link import Link
from fenchel.deploy.netem.link_model import LONGEST_JITTER, QUEUE_SECONDS, LinkModel, cut_times, ways

EPSILON = 1e-9

sends = st.lists(
    st.tuples(st.floats(0, 0.2), st.integers(0, 1 << 20)), min_size=1, max_size=60
)  # seconds since the one before, bytes
rates = st.none() | st.floats(1e3, 1e9)


def way(delay: float = 0.0, jitter: float = 0.0, rate: float | None = None, seed: int = 0) -> LinkModel:
    return LinkModel(delay, jitter, rate, generator(seed, "test"))


def times(steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    clock = itertools.accumulate(pause for pause, _ in steps)
    return [(now, size) for now, (_, size) in zip(clock, steps, strict=True)]


@given(sends, st.floats(0, 1), st.floats(0, 1), rates, st.integers(0, 99))
def test_nothing_arrives_before_its_delay_nor_later_than_delay_queue_and_longest_jitter(
    steps: list[tuple[float, int]], delay: float, jitter: float, rate: float | None, seed: int
) -> None:
    tested = way(delay, jitter, rate, seed)
    free = 0.0  # when an ideal line of this rate would be free
    for now, size in times(steps):
        free = max(free, now) + (0.0 if rate is None else size / rate)
        arrival = tested.arrival(now, size)
        assert free + delay - EPSILON <= arrival <= free + delay + LONGEST_JITTER * jitter + EPSILON


@given(sends, rates)
def test_without_jitter_bytes_arrive_in_the_order_in_which_they_were_sent(
    steps: list[tuple[float, int]], rate: float | None
) -> None:
    tested = way(0.1, 0.0, rate)
    arrivals = [tested.arrival(now, size) for now, size in times(steps)]
    assert arrivals == sorted(arrivals)


@given(sends, st.floats(1e3, 1e9), st.floats(0, 0.5))
def test_in_no_interval_do_more_bytes_leave_than_the_rate_allows(
    steps: list[tuple[float, int]], rate: float, delay: float
) -> None:
    tested = way(delay, 0.0, rate)
    sent = times(steps)
    arrivals = [tested.arrival(now, size) for now, size in sent]
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            size = sum(size for _, size in sent[first : last + 1])
            begun = arrivals[first] - sent[first][1] / rate  # when the first of them began to leave
            assert size <= rate * (arrivals[last] - begun) * (1 + 1e-6) + 1e-3


@given(sends, st.floats(1e3, 1e9))
def test_who_waits_until_the_queue_has_room_never_finds_more_than_the_queue_in_front(
    steps: list[tuple[float, int]], rate: float
) -> None:
    tested = way(0.05, 0.0, rate)
    now = 0.0
    for pause, size in steps:
        now += pause
        now += tested.full_for(now)
        assert tested.free_at - now <= QUEUE_SECONDS + EPSILON
        chunk = min(size, tested.chunk)
        held = rate * (tested.arrival(now, chunk) - now)
        assert held <= tested.capacity


def test_the_jitter_is_exponential_with_the_mean_that_was_asked_for() -> None:
    tested = way(jitter=0.01)
    extra = np.array([tested.arrival(0.0, 1) for _ in range(20_000)])
    assert extra.mean() == pytest.approx(0.01, rel=0.03)
    assert np.median(extra) == pytest.approx(0.01 * math.log(2), rel=0.05)
    assert extra.max() <= 0.01 * LONGEST_JITTER


def test_a_link_has_half_its_round_trip_each_way_and_bandwidths_of_its_own() -> None:
    link = Link.model_validate({"rtt": 0.8, "jitter": 0.1, "upload": 1000, "download": 9000})
    up, down = ways(link, generator(0, "up"), generator(0, "down"))
    assert (up.delay, up.jitter, up.rate) == (0.4, 0.05, 1000)
    assert (down.delay, down.jitter, down.rate) == (0.4, 0.05, 9000)


def test_the_same_seed_gives_the_same_jitter_and_another_seed_another() -> None:
    first, again, other = way(jitter=1.0, seed=1), way(jitter=1.0, seed=1), way(jitter=1.0, seed=2)
    drawn = [[each.arrival(0.0, 1) for _ in range(5)] for each in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("rate", [None, 1e3, 1e5, 2.5e6, 1.25e8, 1e10])
def test_a_chunk_takes_a_few_milliseconds_at_most_unless_it_is_tiny(rate: float | None) -> None:
    chunk = way(rate=rate).chunk
    assert 1024 <= chunk <= 1 << 18
    if rate is not None and chunk > 1024:
        assert chunk / rate <= 0.005


def cuts(link: dict[str, object], number: int, seed: int = 0) -> list[float]:
    return list(itertools.islice(cut_times(Link.model_validate(link), generator(seed, "cuts")), number))


def test_cuts_come_when_they_are_planned_but_not_while_the_link_is_down_anyway() -> None:
    assert cuts({"cut_at": [9, 2, 3.5], "cut_for": 2}, 5) == [2.0, 9.0]
    assert cuts({"cut_at": [1, 1, 2], "cut_for": 0}, 5) == [1.0, 2.0]
    assert cuts({}, 5) == []


def test_the_mean_time_until_a_cut_is_what_was_asked_for_and_the_time_that_it_is_down_does_not_count() -> None:
    found = cuts({"cut_every": 10, "cut_for": 4}, 4000)
    up = np.diff([-4.0, *found]) - 4.0
    assert up.min() >= 0
    assert up.mean() == pytest.approx(10, rel=0.06)
    assert found == cuts({"cut_every": 10, "cut_for": 4}, 4000)
    assert found != cuts({"cut_every": 10, "cut_for": 4}, 4000, seed=1)


def test_planned_and_random_cuts_go_together() -> None:
    found = cuts({"cut_every": 5, "cut_at": [20], "cut_for": 0.001}, 50)
    assert 20.0 in found
    assert found == sorted(found)
    assert len(found) == 50
