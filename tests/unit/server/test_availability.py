"""Who misses one deadline after the other is not waited for, until something speaks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.fleet.availability import ALL_PHASES, CHRONIC, Availability

Event: TypeAlias = tuple[Literal["missed", "kept", "returned"], str]

PHASES = ("loss", "train")
EVENTS = st.lists(st.tuples(st.sampled_from(["missed", "kept", "returned"]), st.sampled_from(PHASES)), max_size=25)


def in_a_row(history: list[Event], phase: str, patience: int | None) -> int:
    """Deadlines missed since the client answered in time, in this phase or in any; or came back when suspected."""
    concerned = [what for what, which in history if what == "returned" or phase in (ALL_PHASES, which)]
    row = list(takewhile(lambda what: what != "kept", reversed(concerned)))[::-1]
    misses = [place for place, what in enumerate(row) if what == "missed"]
    if patience is not None and len(misses) >= patience:
        suspected_at = misses[patience - 1]
        if "returned" in row[suspected_at:]:
            row = row[row.index("returned", suspected_at) :]
    return row.count("missed")


def suspected(history: list[Event], patience: int | None) -> set[str]:
    """Phases that do not wait for the client, where no time passes."""
    if patience is None:
        return set()
    often = {CHRONIC} if [what for what, _ in history].count("missed") >= 3 * patience else set()
    return often | {each for each in (*PHASES, ALL_PHASES) if in_a_row(history, each, patience) >= patience}


@given(EVENTS, st.one_of(st.none(), st.integers(1, 4)))
def test_a_phase_suspects_who_has_missed_so_many_deadlines_of_it_or_of_all_in_a_row(
    events: list[Event], patience: int | None
) -> None:
    client, stream = Availability(), 1
    history: list[Event] = []
    for what, phase in events:
        before = suspected(history, patience)
        history.append((what, phase))
        after = suspected(history, patience)
        if what == "returned":
            stream += 1
            assert client.returned(stream) == (before != after)
        elif what == "kept":
            assert client.record_reply(phase) == (CHRONIC not in before and bool({ALL_PHASES, phase} & before))
        else:
            news = client.record_miss(phase, stream, patience, 60.0)
            assert set(news) == after - before - {CHRONIC}
        assert client.suspected == after
        for each in PHASES:
            assert client.awaited(each) == after.isdisjoint({each, ALL_PHASES, CHRONIC})


def test_who_is_away_is_suspected_in_a_phase_that_it_never_missed() -> None:
    client = Availability()
    assert [client.record_miss(phase, 1, 2, 60.0) for phase in PHASES] == [[], [ALL_PHASES]]
    assert not client.awaited("evaluate")


def test_who_is_slow_in_one_phase_alone_is_awaited_in_the_others() -> None:
    client = Availability()
    for _ in range(3):
        news = client.record_miss("train", 1, 3, 60.0)
        client.record_reply("loss")
    assert news == ["train"]
    assert not client.awaited("train")
    assert client.awaited("loss")


def test_coming_back_speaks_for_a_client_once_until_it_has_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("fenchel.fleet.availability.time.monotonic", lambda: now)
    client = Availability()
    waited = []
    for stream in range(1, 10):  # on another connection in each phase
        client.returned(stream)
        waited.append(client.awaited("train"))
        client.record_miss("train", stream, 2, 60.0)
    assert waited == [True, True, True, True, False, False, False, False, False]
    now += 10_000.0
    client.record_reply("train")
    for stream in range(10, 12):
        client.record_miss("train", stream, 2, 60.0)
    assert not client.awaited("train")
    assert client.returned(12)
    assert client.awaited("train")


def test_coming_back_between_two_misses_does_not_hide_them() -> None:
    client = Availability()
    assert [client.record_miss("train", stream, 3, 60.0) for stream in (1, 2, 3)] == [[], [], [ALL_PHASES, "train"]]


def test_it_gets_another_chance_when_a_deadline_is_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("fenchel.fleet.availability.time.monotonic", lambda: now)
    client = Availability()
    client.record_miss("train", 1, 1, 30.0)
    now += 599.0
    assert not client.awaited("train")
    now += 1.0
    assert client.awaited("train")
    client.record_miss("train", 1, 1, 30.0)  # and misses it
    assert not client.awaited("train")
    now += 600.0
    assert client.awaited("train")


class Stalling:
    """A client that stalls in some rounds, and what this costs a run whose other clients take a second."""

    DEADLINE = 30.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stalls: Callable[[int], bool]) -> None:
        self.now = 1000.0
        self.round = 0
        self.client = Availability("it")
        self.stalls = stalls
        self.waited: list[float] = []
        monkeypatch.setattr("fenchel.fleet.availability.time.monotonic", lambda: self.now)

    def go(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round += 1
            awaited = not self.client.missed or self.client.awaited("train")
            self.now += 1.0
            if not self.stalls(self.round):
                if self.client.missed:  # as an exchange does it
                    self.client.record_reply("train")
            elif awaited:
                self.now += self.DEADLINE - 1
                self.waited.append(self.now)
                self.client.record_miss("train", 1, 3, self.DEADLINE)


def test_who_stalls_at_random_costs_a_few_deadlines_and_then_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chance = np.random.default_rng(3)
    run = Stalling(monkeypatch, lambda t: bool(chance.random() < 0.3))
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        run.go(20_000)
    assert np.diff(run.waited[:9]).max() < 20 * run.DEADLINE
    assert np.diff(run.waited[8:]).min() >= 20 * run.DEADLINE
    assert len(run.waited) <= 9 + (run.now - 1000.0) / (20 * run.DEADLINE)
    assert [each for each in caplog.messages if "misses deadlines repeatedly" in each] == [
        "client it misses deadlines repeatedly: 9 so far (participation.patience). It still receives requests, but the "
        "run no longer waits for its replies, and gives it another chance after 600 s"
    ]


def test_who_stalls_seldom_is_always_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Stalling(monkeypatch, lambda t: t % 700 == 0)
    run.go(20_000)
    assert len(run.waited) == 28
    assert run.client.missed == {}


def test_who_has_mended_its_ways_is_waited_for_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Stalling(monkeypatch, lambda t: t < 30 and t % 2 == 0)
    run.go(40)
    assert run.client.suspected == {CHRONIC}
    assert not run.client.awaited("train")
    assert not run.client.returned(2)  # to come back speaks for somebody who was away
    assert not run.client.awaited("train")
    run.go(600)
    assert run.client.awaited("train")
    assert run.client.suspected == {CHRONIC}  # on probation
    run.go(700)
    assert run.client.suspected == set()
    assert run.client.missed == {}


def test_who_was_away_for_long_is_no_staller(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Stalling(monkeypatch, lambda t: True)
    run.go(20_000)
    assert len(run.waited) > 20
    assert run.client.suspected == {ALL_PHASES, "train"}
    assert run.client.record_reply("train")
    assert run.client.awaited("train")
