"""A phase waits for its replies until its deadline; for its quorum longer, and for who is always late not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from fenchel.common.errors import TooFewRepliesError
from fenchel.common.wire.values import Value
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.collectors import GatherCollector, VisitCollector
from fenchel.fleet.memory_budget import MemoryBudget, Size
from fenchel.fleet.quorum import Shortfall
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises
from tests.reservations import roomy
from tests.unit.server.conftest import MakeMember, body, request_of, settled

PATIENCE = 60.0
NAMES = ("client-0", "client-1", "client-2")


class Noting(GatherCollector):
    """Notes who is not awaited any more."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[str] = []
        self.noted = asyncio.Event()

    def skip(self, client: str) -> None:
        self.skipped.append(client)
        self.noted.set()


class Asked:
    """Three clients that were asked; ``waits``: the quorum is waited for."""

    def __init__(
        self, make_member: MakeMember, deadline: float, *, waits: bool = False, after: Asked | None = None
    ) -> None:
        self.collector = Noting()
        self.told: list[Shortfall] = []  # what people were told
        self.lacks: list[Shortfall] = []
        self.lacking = asyncio.Event()
        lacks = self.note if waits else None
        self.request = request_of(t=4, collector=self.collector, deadline=deadline, patience=2, on_shortfall=lacks)
        self.members: dict[str, ClientRecord] = {} if after is None else after.members
        if after is None:
            self.members = {name: make_member(name) for name in NAMES}
        self.calls: dict[str, Call] = {}
        for name, member in self.members.items():
            self.calls[name] = member.post("train", 4, pb.ASK, body(), self.request)
            self.calls[name].mark_sending(0)
            self.request.expect(member, self.calls[name])

    def note(self, request: Request, shortfall: Shortfall, tell: bool) -> None:
        assert request is self.request
        self.lacks.append(shortfall)
        if tell:
            self.told.append(shortfall)
            self.lacking.set()

    async def short(self, min_replies: int) -> asyncio.Task[Sequence[str]]:
        """Let the deadline pass without enough replies."""
        finishing = asyncio.create_task(self.request.finish(min_replies, "a test"))
        async with asyncio.timeout(PATIENCE):
            await self.lacking.wait()
        return finishing

    def reply(self, name: str) -> None:
        values: dict[str, Value] = {"x": float(NAMES.index(name))}
        self.request.receive(self.calls[name], values)
        self.members[name].resolve(self.calls[name])

    def open(self) -> list[str]:
        return [name for name, call in self.calls.items() if self.request.is_open_for(call)]

    async def all_but_the_last(self) -> asyncio.Task[Sequence[str]]:
        """Let all clients but the last one answer."""
        finishing = asyncio.create_task(self.request.finish(1))
        for name in NAMES[:2]:
            self.reply(name)
        await settled()
        return finishing

    async def overdue(self) -> asyncio.Task[Sequence[str]]:
        """Let the deadline pass while the last client's reply arrives and the first one's has arrived."""
        await self.request.arriving(self.calls["client-2"], 100)
        self.reply("client-0")
        finishing = asyncio.create_task(self.request.finish(1))
        async with asyncio.timeout(PATIENCE):
            await self.collector.noted.wait()
        assert self.open() == ["client-2"]
        assert not finishing.done()
        return finishing


MakeAsked: TypeAlias = Callable[..., Asked]


@pytest.fixture
def make_asked(make_member: MakeMember) -> MakeAsked:
    return lambda deadline=PATIENCE, **how: Asked(make_member, deadline, **how)


async def test_all_answers_are_awaited_and_listed_in_the_order_of_ids(make_asked: MakeAsked) -> None:
    asked = make_asked()
    finishing = asyncio.create_task(asked.request.finish(1))
    for name in reversed(NAMES):
        assert not finishing.done()
        asked.reply(name)
        await asyncio.sleep(0)
    assert await finishing == list(NAMES)
    assert list(asked.collector.replies) == list(reversed(NAMES))
    assert [member.base for member in asked.members.values()] == [1, 1, 1]
    assert {call.outcome for call in asked.calls.values()} == {"counted"}


async def test_who_misses_the_deadline_is_left_out(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    asked.reply("client-1")
    assert await asked.request.finish(1) == ["client-1"]
    assert asked.open() == []
    assert asked.collector.skipped == ["client-0", "client-2"]
    assert asked.members["client-0"].base == 0
    assert asked.members["client-0"].outstanding == {}
    assert asked.calls["client-0"].body is None


async def test_a_reply_whose_stream_breaks_after_the_deadline_does_not_count(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    finishing = await asked.overdue()
    asked.request.interrupted("client-2")
    assert await finishing == ["client-0"]


async def test_a_failure_is_told_and_nobody_waits_for_it(make_asked: MakeAsked) -> None:
    asked = make_asked()
    asked.request.fail(asked.calls["client-0"], "diverged")
    asked.reply("client-1")
    asked.reply("client-2")
    assert await asked.request.finish(2) == ["client-1", "client-2"]
    assert asked.request.failures == {"client-0": "diverged"}
    assert asked.calls["client-0"].outcome == "failed"


@pytest.mark.parametrize(
    ("min_replies", "answers", "enough"), [(1, 1, True), (2, 1, False), (3, 3, True), (9, 3, True)]
)
async def test_fewer_than_min_replies_stop_the_run_and_at_most_all_are_needed(
    make_asked: MakeAsked, min_replies: int, answers: int, enough: bool
) -> None:
    asked = make_asked()
    finishing = asyncio.create_task(asked.request.finish(min_replies))
    await asyncio.sleep(0)
    for name in NAMES[:answers]:
        asked.reply(name)
    for name in NAMES[answers:]:
        asked.request.fail(asked.calls[name], "diverged")
    if enough:
        assert len(await finishing) == answers
    else:
        with raises(TooFewRepliesError, round=4, phase="train"):
            await finishing


@pytest.mark.parametrize("diverged", [True, False])
async def test_answers_that_are_not_finite_are_told_from_others_whatever_their_words(
    make_asked: MakeAsked, diverged: bool
) -> None:
    asked, reason = make_asked(), "'change' has 4 values that are not finite, or says so"
    finishing = asyncio.create_task(asked.request.finish(1))
    await asyncio.sleep(0)
    for name in NAMES:
        asked.request.fail(asked.calls[name], reason, diverged=diverged and name == "client-1")
    with raises(TooFewRepliesError, round=4, phase="train") as caught:
        await finishing
    assert caught.value.diverged is diverged
    assert caught.value.failures == dict.fromkeys(NAMES, reason)
    assert ("begin a new one with a smaller step_size" in str(caught.value)) is diverged
    assert ("--resume" in str(caught.value)) is not diverged


async def test_who_is_lost_or_away_has_not_answered(make_asked: MakeAsked) -> None:
    asked = make_asked(0.05)
    finishing = asyncio.create_task(asked.request.finish(2))
    await asyncio.sleep(0)
    asked.request.fail(asked.calls["client-0"], "no memory left")
    asked.members["client-1"].mark_lost("its disk broke")
    with raises(TooFewRepliesError, round=4, phase="train") as caught:
        await finishing
    assert "diverged" not in str(caught.value)


async def test_no_reply_at_all_stops_the_run(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    with raises(TooFewRepliesError, round=4, phase="train"):
        await asked.request.finish(1)
    with raises(TooFewRepliesError, round=4, phase="train"):
        await request_of(t=4).finish(1)


# Waiting for the quorum


async def test_nobody_is_given_up_before_the_quorum_is_there_and_then_all_who_miss_are(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01, waits=True)
    finishing = await asked.short(2)
    assert asked.open() == list(NAMES)
    (shortfall,) = asked.told
    assert (shortfall.answered, shortfall.asked, shortfall.needed) == (0, 3, 2)
    assert [member.name for member in shortfall.missing] == list(NAMES)
    asked.reply("client-2")
    await asyncio.sleep(0.05)
    assert asked.open() == ["client-0", "client-1"]
    asked.reply("client-0")
    assert await asyncio.wait_for(finishing, PATIENCE) == ["client-0", "client-2"]
    assert asked.open() == []
    assert asked.members["client-1"].overdue is asked.calls["client-1"]
    assert [member.base for member in asked.members.values()] == [1, 0, 1]


async def test_replies_that_are_held_back_behind_who_is_away_are_enough_for_the_quorum(make_member: MakeMember) -> None:
    names = [*NAMES, "client-3"]
    collector = VisitCollector(names, 2 << 20, lambda client, values: None)
    request = request_of(
        collector=collector,
        deadline=0.05,
        reservation=roomy(names, 2 << 20),
        on_shortfall=lambda request, shortfall, tell: None,
    )
    members = {name: make_member(name) for name in names}
    calls = {name: member.post("train", 4, pb.ASK, body(), request) for name, member in members.items()}
    for name, member in members.items():
        request.expect(member, calls[name])

    async def reply(name: str) -> None:
        await request.arriving(calls[name], 2 << 20)  # there is room for one
        request.receive(calls[name], {"x": 1.0})
        members[name].resolve(calls[name])

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        finishing = group.create_task(request.finish(3))
        for name in names[1:]:
            group.create_task(reply(name))
    assert finishing.result() == names[1:]


async def test_a_quorum_that_cannot_come_any_more_stops_the_run_and_says_why(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01, waits=True)
    asked.reply("client-0")
    finishing = asyncio.create_task(asked.request.finish(3, "a test"))
    await asyncio.wait_for(asked.lacking.wait(), PATIENCE)
    asked.members["client-2"].mark_lost("its disk broke")
    with raises(TooFewRepliesError, round=4, phase="train") as caught:
        await asyncio.wait_for(finishing, PATIENCE)
    text = str(caught.value)
    assert (
        "1 of 3 clients answered, and 1 of the others are lost or have spent their budgets, but 3 are required (a test)"
        in text
    )
    assert "client-2: its disk broke" in text
    assert "within" not in text


async def test_the_wait_can_be_ended_at_once_and_leaves_the_question_open(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01, waits=True)
    finishing = await asked.short(3)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(finishing, PATIENCE / 2)
    assert asked.open() == list(NAMES)


def test_people_hear_who_is_missing_what_happens_and_what_they_can_do(make_member: MakeMember) -> None:
    members = [make_member(f"client-{i}") for i in range(7)]
    members[0].queue = asyncio.Queue()
    shortfall = Shortfall("train", 4, 1, 8, 3, "participation.min_replies", members, 120.2)
    assert shortfall.warning(3) == (
        "round 4, phase 'train': 1 of 8 clients answered within 120 s, but 3 are required (participation.min_replies). "
        "The run waits for 2 more, of client-0 (connected), client-1 (away), client-2 (away), client-3 (away), "
        "client-4 (away) and 2 more, and then continues at once. Everything up to round 3 is saved; Ctrl-C or SIGTERM "
        "stops the run, and --resume continues it"
    )
    assert "The state before round 1 is saved" in shortfall.warning(0)
    assert "nothing is saved yet" in shortfall.warning(None)
    assert shortfall.status.startswith("round 4, phase 'train': waiting for 2 more, of client-0 (connected), ")


# Replies that are held back


class Stalled:
    """Clients whose replies, 2 MiB each, are taken in order; the first one begins its reply and stalls.

    ``buffer`` is that of replies before their turn, in MiB.
    """

    def __init__(
        self,
        make_member: MakeMember,
        deadline: float,
        buffer: int = 1,
        *,
        stalls: bool = True,
        after: Stalled | None = None,
    ) -> None:
        self.names = [f"client-{index}" for index in range(5)]
        self.told: list[Shortfall] = []
        self.taken: list[str] = []
        collector = VisitCollector(self.names, buffer << 20, lambda client, values: self.taken.append(client))
        self.request = request_of(
            t=4,
            collector=collector,
            deadline=deadline,
            reservation=roomy(self.names, buffer << 20),
            patience=2,
            on_shortfall=lambda request, shortfall, tell: self.told.append(shortfall) if tell else None,
        )
        self.members: dict[str, ClientRecord] = {} if after is None else after.members
        if after is None:
            self.members = {name: make_member(name) for name in self.names}
        self._stalls = stalls

    async def finish(self, min_replies: int, limit: float = PATIENCE) -> Sequence[str]:
        replies = []
        for name, member in self.members.items():
            call = member.post("train", 4, pb.ASK, body(), self.request)
            self.request.expect(member, call)
            replies.append(asyncio.create_task(self._reply(name, call)))
        try:
            async with asyncio.timeout(limit):
                return await self.request.finish(min_replies)
        finally:
            for each in replies:
                each.cancel()

    async def _reply(self, name: str, call: Call) -> None:
        await self.request.arriving(call, 2 << 20)
        if self._stalls and name == self.names[0]:
            return
        if self.request.is_open_for(call):
            self.request.receive(call, {"x": 1.0})
            self.members[name].resolve(call)

    def late(self) -> list[str]:
        return [name for name, member in self.members.items() if member.availability.missed]


@pytest.mark.parametrize("buffer", [1, 5])  # for no reply before its turn, and for two
async def test_who_stalls_when_it_is_its_turn_does_not_hold_the_run(make_member: MakeMember, buffer: int) -> None:
    stalled = Stalled(make_member, 0.1, buffer)
    assert await stalled.finish(4) == stalled.names[1:]
    assert stalled.taken == stalled.names[1:]
    assert stalled.late() == ["client-0"], "it kept the others from answering"
    assert stalled.told == [], "nobody need hear of it: what had begun to arrive was enough"


async def test_who_stalls_again_and_again_costs_no_deadline_any_more(make_member: MakeMember) -> None:
    stalled = None
    for _ in range(2):
        stalled = Stalled(make_member, 0.05, after=stalled)
        assert await stalled.finish(4) == stalled.names[1:]
    following = Stalled(make_member, PATIENCE, after=stalled)
    assert await following.finish(4, limit=PATIENCE / 2) == following.names[1:]
    assert following.late() == ["client-0"]


async def test_whom_an_older_phase_keeps_out_is_not_late_and_does_not_hold_its_own_phase(
    make_member: MakeMember, caplog: pytest.LogCaptureFixture
) -> None:
    memory_budget = MemoryBudget(10 << 20)
    held = Stalled(make_member, 0.05, stalls=False)
    with memory_budget.reserve("an older phase", {"client-9": Size(1, None)}):
        room = memory_budget.reserve("this phase", dict.fromkeys(held.names, Size(2 << 20, 2 << 20)))
        held.request = request_of(t=4, deadline=0.05, reservation=room, patience=1)
        with room:
            assert await held.finish(0) == []
    assert held.late() == []
    assert "no memory for the reply of client client-3 became free within 0.05 s" in caplog.text
    assert "did not answer" not in caplog.text


# Always late


async def always_late(make_asked: MakeAsked, caplog: pytest.LogCaptureFixture) -> Asked:
    """Let client 2 miss two deadlines, as many as the run bears with."""
    asked = None
    for _ in range(2):
        asked = make_asked(0.01, after=asked)
        for name in NAMES[:2]:
            asked.reply(name)
        assert await asked.request.finish(1) == list(NAMES[:2])
    assert asked is not None
    (told,) = [record for record in caplog.records if "deadlines in a row" in record.message]
    assert told.levelno == logging.WARNING
    assert "client client-2 has missed 2 deadlines in a row" in told.message
    return asked


async def test_who_is_always_late_is_not_waited_for_once_all_others_have_answered(
    make_asked: MakeAsked, caplog: pytest.LogCaptureFixture
) -> None:
    asked = make_asked(after=await always_late(make_asked, caplog))
    finishing = asyncio.create_task(asked.request.finish(1))
    asked.reply("client-1")
    await asyncio.sleep(0.02)
    assert asked.open() == ["client-0", "client-2"]
    asked.reply("client-0")
    assert await asyncio.wait_for(finishing, PATIENCE / 2) == ["client-0", "client-1"]
    late = asked.members["client-2"]
    assert (late.base, late.overdue, late.outstanding) == (0, asked.calls["client-2"], {}), "it is undone as ever"
    again = [record for record in caplog.records if "deadlines in a row" in record.message]
    assert len(again) == 1


async def test_its_reply_counts_if_it_is_there_and_it_is_waited_for_again(
    make_asked: MakeAsked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked = make_asked(after=await always_late(make_asked, caplog))
    asked.reply("client-2")
    asked.reply("client-0")
    finishing = asyncio.create_task(asked.request.finish(1))
    await asyncio.sleep(0)
    asked.reply("client-1")
    assert await finishing == list(NAMES)
    assert "client client-2 answered before the deadline; the server awaits its replies again\n" in caplog.text
    following = make_asked(0.05, after=asked)
    finishing = await following.all_but_the_last()
    assert following.open() == ["client-2"]
    following.reply("client-2")
    await finishing


async def test_who_is_slow_in_one_phase_is_waited_for_in_another_and_people_hear_in_which_it_is_not(
    make_asked: MakeAsked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked = make_asked(after=await always_late(make_asked, caplog))
    asked.request.phase = "loss"
    for name in NAMES:
        asked.reply(name)
    assert await asked.request.finish(1) == list(NAMES)
    assert "awaits its replies again, except in phase 'train'" in caplog.text
    following = make_asked(after=asked)
    assert await asyncio.wait_for(await following.all_but_the_last(), PATIENCE / 2) == ["client-0", "client-1"]


async def test_a_client_that_comes_back_is_waited_for_again(
    make_asked: MakeAsked, caplog: pytest.LogCaptureFixture
) -> None:
    before = await always_late(make_asked, caplog)
    caplog.set_level(logging.INFO)
    before.members["client-2"].streams += 1
    asked = make_asked(0.05, after=before)
    finishing = await asked.all_but_the_last()
    assert asked.open() == ["client-2"]
    assert "client client-2 reconnected" in caplog.text
    await finishing


async def test_a_call_of_another_exchange_is_not_open_here(make_asked: MakeAsked) -> None:
    first, second = make_asked(), make_asked()
    assert first.request.is_open_for(first.calls["client-0"])
    assert not first.request.is_open_for(second.calls["client-0"])
