"""Those who come late wait until they are called, and a run that cannot take them in says so at its start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fenchel
from fenchel.algorithms.registry import server_half
from fenchel.common.errors import JoinRefusedError, SettingsError
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.client_record import EPOCH_BITS, ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.fleet import Fleet
from fenchel.server.coordinator import Coordinator
from fenchel.server.membership.late_joiners import LateJoiners, check_late_joiners
from tests.messages import raises
from tests.unit.server.conftest import MakeMember

PATIENCE = 60.0  # seconds; what waits for ever fails, and a busy machine does not


async def waiting(newcomers: LateJoiners, name: str) -> asyncio.Task[None]:
    """Let a client come to where it waits."""
    task = asyncio.create_task(newcomers.wait(newcomers.record(name)))
    await asyncio.sleep(0)
    return task


def called(newcomers: LateJoiners) -> ClientRecord:
    member = newcomers.pop_ready()
    assert member is not None
    return member


async def test_they_are_called_in_the_order_of_ids_and_each_once() -> None:
    newcomers = LateJoiners(0)
    tasks = {name: await waiting(newcomers, name) for name in ("c", "a", "b")}
    for name in ("a", "b", "c"):
        assert called(newcomers).name == name
        await asyncio.wait_for(tasks[name], PATIENCE)
    assert newcomers.pop_ready() is None


async def test_one_whose_stream_broke_is_not_called_until_it_is_back() -> None:
    newcomers = LateJoiners(0)
    first = await waiting(newcomers, "a")
    second = await waiting(newcomers, "a")  # its old stream seems to be open
    first.cancel()
    await asyncio.wait([first])
    assert newcomers.pop_ready() is not None
    await second
    third = await waiting(newcomers, "a")
    third.cancel()
    await asyncio.wait([third])
    assert newcomers.pop_ready() is None
    assert newcomers.record("a") is newcomers.record("a")


async def test_instructions_are_numbered_above_all_that_its_journal_may_hold() -> None:
    newcomers = LateJoiners(3)
    await waiting(newcomers, "a")
    member = called(newcomers)
    assert member.next_sequence == (3 << EPOCH_BITS) + 1
    member.next_sequence += 5
    newcomers.turn_away(member, b"process", "no room", 0.0)
    assert newcomers.record("a").next_sequence == (3 << EPOCH_BITS) + 6
    assert newcomers.record("a").base == 0


async def test_a_process_that_was_turned_away_hears_why_and_another_may_try() -> None:
    newcomers = LateJoiners(0)
    await waiting(newcomers, "a")
    member = called(newcomers)
    newcomers.check_welcome("a", b"first")
    newcomers.turn_away(member, b"first", "no room", 0.0)
    with raises(JoinRefusedError, problem="no room"):
        newcomers.check_welcome("a", b"first")
    newcomers.check_welcome("a", b"second")
    with raises(JoinRefusedError):
        await newcomers.wait(member)


async def test_who_has_kept_all_waiting_in_vain_waits_longer_and_longer_and_holds_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 500.0
    monkeypatch.setattr("fenchel.server.membership.late_joiners.time.monotonic", lambda: now)
    newcomers = LateJoiners(0)
    for process, pause in enumerate([60.0, 120.0, 240.0]):
        await waiting(newcomers, "a")
        member = called(newcomers)
        assert member.name == "a"
        newcomers.turn_away(member, bytes([process]), "it did not answer", 3.0)
        await waiting(newcomers, "a")
        await waiting(newcomers, "b")
        assert newcomers.pause("a") == pause
        assert newcomers.pause("b") == 0
        assert called(newcomers).name == "b"
        now += pause - 1
        assert newcomers.pop_ready() is None
        now += 1
    assert newcomers.pop_ready() is not None


async def test_nobody_waits_for_a_run_that_is_over() -> None:
    newcomers = LateJoiners(0)
    task = await waiting(newcomers, "a")
    newcomers.end()
    await asyncio.wait_for(task, PATIENCE)


def test_the_fleet_stays_in_the_order_of_ids_when_it_grows(make_member: MakeMember) -> None:
    members = {name: make_member(name) for name in ["b", "d"]}
    fleet = Fleet(members=members, seed=0, participation=Participation())
    late_joiner = make_member("c")
    assert fleet.admit(late_joiner).clients == ("c",)
    assert list(members) == ["b", "c", "d"]
    assert fleet.all().clients == ("b", "c", "d")
    fleet.dismiss(late_joiner)
    assert list(members) == ["b", "d"]


def settings(algorithm: str, data: str = "own", **sections: Any) -> RunSettings:
    return validate(
        {
            "rounds": 2,
            "clients": 2,
            "data": {"name": data},
            "objective": {"kind": "logistic", "l2": 0.1},
            "algorithm": {"name": algorithm},
            "participation": {"late_joiners": "admit"},
        }
        | sections
    )


def test_algorithms_that_align_the_clients_at_the_start_refuse_and_the_others_do_not() -> None:
    for name in ("hyfdca", "hybrid-fedavg", "hyfem-like"):
        with raises(SettingsError, key="participation.late_joiners"):
            check_late_joiners(settings(name), server_half(name))
    for name in ("fedavg", "fedprox", "scaffold", "mb-sgd", "feddcd", "acc-feddcd"):
        check_late_joiners(settings(name), server_half(name))


def test_a_data_set_that_is_divided_at_the_start_has_nothing_left_before_anything_starts(tmp_path: Path) -> None:
    with raises(SettingsError, key="participation.late_joiners"):
        Coordinator(settings("fedavg", "breast_cancer"), RunFolder.create(tmp_path, "run"))


class SetsUp(fenchel.Algorithm):
    async def start(self) -> None: ...


class TakesIn(SetsUp):
    async def admit(self, cohort: Cohort) -> None: ...


class Sums(fenchel.Algorithm):
    @dataclass
    class State(fenchel.Algorithm.State):
        mean_dual: fenchel.Vector


class Fixed(TakesIn):
    fixed_fleet = "the clients share a table of all of them"


def test_an_algorithm_that_sets_clients_up_or_keeps_a_state_must_say_what_a_newcomer_needs() -> None:
    run = settings("fedavg")
    for half in (SetsUp, Sums, Fixed):
        with raises(SettingsError, key="participation.late_joiners"):
            check_late_joiners(run, half)
    check_late_joiners(run, TakesIn)


def test_by_default_nobody_is_admitted_and_any_algorithm_will_do() -> None:
    run = settings("hyfdca", participation={})
    assert run.participation.late_joiners == "refuse"
    check_late_joiners(run, server_half("hyfdca"))
