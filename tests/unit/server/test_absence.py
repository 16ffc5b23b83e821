"""Who is away for long leaves its place in cohorts to others: by what the run has recorded, and by nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.settings.participation import FixedSize, Participation
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.availability import Absence
from fenchel.fleet.calls import Call, Outcome
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints

NAMES = tuple("abcdefgh")
ROUNDS = 400


@dataclass
class State:
    model: Vector


def fleet_of(names: tuple[str, ...] = NAMES, patience: int | None = 3, size: int = 3) -> Fleet:
    members = {name: ClientRecord(name, pb.ShardDescription(samples=5)) for name in names}
    return Fleet(members=members, seed=7, participation=Participation(sampler=FixedSize(size=size), patience=patience))


def asked(t: int, outcomes: Mapping[str, Outcome], phase: str = "train") -> list[Call]:
    calls = []
    for client, outcome in outcomes.items():
        call = Call(client=client, sequence=t, base=0, phase=phase, round=t, kind=pb.ASK, body=None)
        call.outcome = outcome
        calls.append(call)
    return calls


def course(fleet: Fleet, away: Callable[[str, int], bool], first: int = 1, last: int = ROUNDS) -> list[tuple[str, ...]]:
    """Go through rounds in which some are away; return the cohorts."""
    cohorts = []
    for t in range(first, last + 1):
        with fleet.in_round(t) as calls:
            cohort = fleet.sample().clients
            cohorts.append(cohort)
            outcomes: dict[str, Outcome] = {name: "unanswered" if away(name, t) else "counted" for name in cohort}
            calls += asked(t, outcomes)
    return cohorts


def test_who_is_away_for_good_takes_ever_fewer_places() -> None:
    cohorts = course(fleet_of(), lambda name, t: name in "ab")
    taken = [sum(name in "ab" for name in cohort) for cohort in cohorts]
    assert {len(cohort) for cohort in cohorts} == {3}
    assert sum(taken[:20]) > 6  # as often as the others, at first
    assert sum(taken[-100:]) <= 4  # and 75 of 300 places without this
    assert sum(taken) < 50


def test_who_is_back_is_drawn_again_after_a_quarter_of_its_absence_and_then_as_the_others() -> None:
    left, back = 20, 120
    fleet = fleet_of(("a", "b", "c", "d"))
    cohorts = course(fleet, lambda name, t: name == "a" and left <= t < back)
    again = next(t for t in range(back, ROUNDS) if "a" in cohorts[t - 1])
    assert again <= back + (back - left) / 4 + 5
    after = cohorts[again:]
    assert 0.65 < sum("a" in cohort for cohort in after) / len(after) < 0.85  # three of four
    assert fleet.members["a"].availability.absence == Absence()


@cache
def with_everybody() -> list[tuple[str, ...]]:
    return course(fleet_of(size=7), lambda name, t: False)


@pytest.mark.slow
@given(st.integers(1, ROUNDS - 2), st.integers(1, 2))
def test_an_absence_shorter_than_the_patience_changes_no_draw(start: int, rounds: int) -> None:
    away = course(fleet_of(size=7), lambda name, t: start <= t < start + rounds)
    assert away == with_everybody()


def test_without_patience_everybody_is_drawn_as_ever() -> None:
    away = course(fleet_of(patience=None), lambda name, t: name in "ab")
    assert away == course(fleet_of(), lambda name, t: False)


@pytest.mark.parametrize("snapshot", [7, 60, 211])
def test_a_server_that_is_resumed_draws_as_it_would_have_drawn(snapshot: int, tmp_path: Path) -> None:
    def away(name: str, t: int) -> bool:
        return name == "a" or (name == "b" and 40 < t < 200)

    undisturbed = course(fleet_of(), away)
    fleet = fleet_of()
    course(fleet, away, last=snapshot)
    folder = RunFolder(tmp_path / "run")
    folder.checkpoint.parent.mkdir(parents=True)
    checkpoint = checkpoints.take("run", snapshot, 0, State(np.zeros(2)), fleet.members)
    checkpoints.save(folder, checkpoint, sync=False)
    resumed = fleet_of()
    resumed.members = checkpoints.load(folder.checkpoint).restore()
    assert course(resumed, away, first=snapshot + 1) == undisturbed[snapshot:]


@pytest.mark.parametrize(
    ("outcomes", "missed"),
    [
        ([{"a": "unanswered"}], 1),
        ([{"a": "late"}], 1),
        ([{"a": "counted"}, {"a": "unanswered"}], 0),  # of two phases
        ([{"a": "failed"}], 0),
        ([{"b": "counted"}], 0),
    ],
)
def test_a_round_is_missed_by_who_was_asked_and_gave_no_answer_in_any_phase(
    outcomes: list[dict[str, Outcome]], missed: int
) -> None:
    fleet = fleet_of()
    with fleet.in_round(5) as calls:
        calls += [call for each in outcomes for call in asked(5, each)]
    assert fleet.members["a"].availability.absence.missed == missed


def test_evaluations_promises_other_rounds_and_a_lack_of_room_do_not_count() -> None:
    fleet = fleet_of()
    evaluation, promise, admission, kept_out = (asked(t, {"a": "unanswered"})[0] for t in (5, 5, 4, 5))
    evaluation.kind, promise.kind, kept_out.kept_out = pb.INSPECT, pb.TELL, True
    with fleet.in_round(5) as calls:
        calls += [evaluation, promise, admission, kept_out]
    assert fleet.members["a"].availability.absence == Absence()


def test_people_are_told_once_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        course(fleet_of(), lambda name, t: name == "a")
    (said,) = caplog.messages
    assert said.startswith("client a did not answer its requests in 3 rounds in a row (participation.patience)")


def test_after_the_last_round_nobody_is_missed() -> None:
    fleet = fleet_of()
    with fleet.in_round(5, draws_follow=False) as calls:
        calls += asked(5, {"a": "unanswered"})
    assert fleet.members["a"].availability.absence == Absence()


def test_the_instructions_of_a_round_that_breaks_off_are_kept_and_nobody_is_missed() -> None:
    fleet = fleet_of()

    def break_off() -> None:
        with fleet.in_round(5) as calls:
            calls += asked(5, {"a": "unanswered"})
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert [call.client for call in fleet.calls] == ["a"]
    assert fleet.members["a"].availability.absence == Absence()
