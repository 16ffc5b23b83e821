"""How long a phase waits, for how many, and what people see of it: the settings, seen from the fleet."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from fenchel.common.errors import LostStateError, TooFewRepliesError
from fenchel.common.settings.participation import Participation
from fenchel.common.wire.phases import EVALUATE
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.request import Request
from tests.messages import raises

PATIENCE = 30.0
NAMES = ("client-0", "client-1", "client-2")


class Watched:
    """A fleet of three that nobody serves; what it says while it waits is noted."""

    def __init__(self, **participation: Any) -> None:
        self.said: list[str] = []
        self.waiting = asyncio.Event()
        members = {name: ClientRecord(name) for name in NAMES}
        self.fleet = Fleet(members=members, seed=0, participation=Participation(**participation), round=5)
        self.saved: int | None = None
        self.watching = asyncio.create_task(self.fleet.shortfalls.watch(self.note, self.secure))

    async def secure(self) -> int | None:
        return self.saved

    def note(self, words: str) -> None:
        self.said.append(words)
        self.waiting.set()

    def answer(self, *clients: str) -> None:
        for call in self.fleet.calls:
            if call.client in clients:
                exchange_of(call).receive(call, {})
                self.fleet.members[call.client].resolve(call)

    async def ask(self, phase: str = "train", **how: Any) -> asyncio.Task[Any]:
        asking = asyncio.create_task(self.fleet.all().ask(phase, **how))
        await asyncio.sleep(0)
        return asking


def exchange_of(call: Call) -> Request:
    assert isinstance(call.request, Request)
    return call.request


async def test_a_run_that_waits_for_its_quorum_says_so_and_says_when_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(deadline=0.01, min_replies=2)
    watched.saved = 4
    asking = await watched.ask()
    await asyncio.wait_for(watched.waiting.wait(), PATIENCE)
    assert watched.said[-1] == (
        "round 5, phase 'train': waiting for 2 more, of client-0 (away), client-1 (away), client-2 (away)"
    )
    async with asyncio.timeout(PATIENCE):
        while not (warnings := [each for each in caplog.records if "The run waits" in each.message]):
            await asyncio.sleep(0)
    warning = warnings[0]
    assert warning.levelno == logging.WARNING
    assert "2 are required (participation.min_replies)" in warning.message
    assert "Everything up to round 4 is saved" in warning.message
    watched.answer("client-1")
    await asyncio.sleep(0.01)
    assert "waiting for 1 more, of client-0 (away), client-2 (away)" in watched.said[-1]
    watched.answer("client-2")
    assert list(await asyncio.wait_for(asking, PATIENCE)) == ["client-1", "client-2"]
    await asyncio.sleep(0)
    assert watched.said[-1] == ""


async def test_the_run_is_saved_before_it_says_that_it_waits_and_says_nothing_if_it_goes_on_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(deadline=0.01)
    saving, go_on = asyncio.Event(), asyncio.Event()

    async def secure() -> int:
        saving.set()
        await go_on.wait()
        return 4

    watched.watching.cancel()
    watched.watching = asyncio.create_task(watched.fleet.shortfalls.watch(watched.note, secure))
    asking = await watched.ask()
    await asyncio.wait_for(saving.wait(), PATIENCE)
    assert "The run waits" not in caplog.text
    go_on.set()
    await asyncio.sleep(0.01)
    assert "Everything up to round 4 is saved" in caplog.text
    caplog.clear()
    saving.clear()
    go_on.clear()
    await asyncio.wait_for(saving.wait(), PATIENCE)  # it is told again now and then
    watched.answer(*NAMES)
    await asyncio.wait_for(asking, PATIENCE)
    go_on.set()
    await asyncio.sleep(0.01)
    assert "The run waits" not in caplog.text


async def test_of_two_phases_that_wait_the_one_that_goes_on_does_not_hide_the_other() -> None:
    watched = Watched(deadline=0.01)
    alone = [Cohort(watched.fleet, (name,)) for name in NAMES[:2]]
    first, second = (asyncio.create_task(cohort.ask("train")) for cohort in alone)
    while "client-0" not in (said := watched.said[-1] if watched.said else "") or "client-1" not in said:
        await asyncio.sleep(0.005)
    watched.answer("client-0")
    await first
    await asyncio.sleep(0)
    assert "client-1" in watched.said[-1]
    assert "client-0" not in watched.said[-1]
    watched.answer("client-1")
    await second
    await asyncio.sleep(0)
    assert watched.said[-1] == ""


async def test_a_client_that_has_lost_its_state_ends_the_wait_of_a_run_that_must_stop_then() -> None:
    watched = Watched(deadline=0.01)
    asking = await watched.ask()
    await asyncio.wait_for(watched.waiting.wait(), PATIENCE)
    watched.fleet.members["client-1"].mark_lost("its journal is gone")
    with raises(LostStateError, client="client-1"):
        await asyncio.wait_for(asking, PATIENCE)
    await asyncio.sleep(0)
    assert watched.said[-1] == ""


async def test_a_run_that_goes_on_without_lost_clients_waits_for_the_others() -> None:
    watched = Watched(deadline=0.01, on_lost_state="continue")
    asking = await watched.ask()
    await asyncio.wait_for(watched.waiting.wait(), PATIENCE)
    watched.fleet.members["client-1"].mark_lost("its journal is gone")
    await asyncio.sleep(0.02)
    assert not asking.done()
    watched.answer("client-2")
    assert list(await asking) == ["client-2"]


async def test_nobody_waits_for_a_newcomer_that_is_gone_again() -> None:
    watched = Watched(deadline=0.01)
    newcomer = watched.fleet.admit(ClientRecord("client-9"))
    with raises(TooFewRepliesError, round=5, phase="train"):
        await asyncio.wait_for(newcomer.ask("train"), PATIENCE)


@pytest.mark.parametrize(
    ("wanted", "needed_by_algorithm", "replies"),
    [(None, None, 2), (3, None, 3), (1, None, 1), (1, 3, 3), (3, 1, 3), (3, 0, 3), (None, 0, 0)],
)
async def test_a_phase_of_its_own_terms_may_need_more_than_the_algorithm_not_less(
    wanted: int | None, needed_by_algorithm: int | None, replies: int
) -> None:
    phases = {} if wanted is None else {"train": {"min_replies": wanted}}
    watched = Watched(deadline=0.01, min_replies=2, on_shortage="stop", phases=phases)
    for answers in range(replies):
        watched.fleet.calls.clear()
        asking = await watched.ask(min_replies=needed_by_algorithm)
        watched.answer(*NAMES[:answers])
        with raises(TooFewRepliesError, round=5, phase="train"):
            await asking
    watched.fleet.calls.clear()
    asking = await watched.ask(min_replies=needed_by_algorithm)
    watched.answer(*NAMES[:replies])
    assert len(await asking) == replies
    assert watched.said == [], "a run that stops does not wait"


async def test_each_phase_waits_as_long_as_its_own_terms_say() -> None:
    phases = {"train": {"deadline": 0.01}, EVALUATE: {"deadline": 0.02}}
    watched = Watched(deadline=3600.0, on_shortage="stop", phases=phases)
    asking = await watched.ask("train", deadline=3600.0)
    with raises(TooFewRepliesError, round=5, phase="train"):
        await asyncio.wait_for(asking, PATIENCE)
    with raises(TooFewRepliesError, round=5, phase="fenchel.evaluate"):
        await asyncio.wait_for(watched.fleet.all().inspect(EVALUATE, returns={}), PATIENCE)
    other = await watched.ask("loss")
    await asyncio.sleep(0.05)
    assert not other.done()
    other.cancel()


async def test_an_evaluation_waits_until_somebody_answers() -> None:
    watched = Watched(deadline=0.01, min_replies=3)
    asking = asyncio.create_task(watched.fleet.all().inspect(EVALUATE, returns={}))
    await asyncio.wait_for(watched.waiting.wait(), PATIENCE)
    watched.answer("client-1")
    assert list(await asyncio.wait_for(asking, PATIENCE)) == ["client-1"]
