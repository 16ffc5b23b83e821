"""A phase waits for its replies, until its deadline, and not longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from common.errors import TooFewRepliesError
from common.payload import Value, Values
from proto import fenchel_pb2 as pb
from server.calls import Call
from server.exchange import Exchange
from server.replies import Gathered
from tests.unit.server.conftest import MakeMember, body

PATIENCE = 60.0
NAMES = ("client-0", "client-1", "client-2")


class Noting(Gathered):
    """Notes who is not awaited any more."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[str] = []
        self.noted = asyncio.Event()

    def skip(self, client: str) -> None:
        self.skipped.append(client)
        self.noted.set()


def accept(client: str, values: Values, finite: bool) -> None:
    """Find nothing wrong with a reply."""


class Asked:
    """Three clients that were asked."""

    def __init__(self, make_member: MakeMember, deadline: float) -> None:
        self.collector = Noting()
        self.exchange = Exchange("train", 4, self.collector, accept, deadline)
        self.members = {name: make_member(name, index) for index, name in enumerate(NAMES)}
        self.calls: dict[str, Call] = {}
        for name, member in self.members.items():
            self.calls[name] = member.post("train", 4, pb.ASK, body(), self.exchange)
            self.exchange.expect(member, self.calls[name])

    def reply(self, name: str) -> None:
        values: dict[str, Value] = {"x": float(NAMES.index(name))}
        self.exchange.receive(self.calls[name], values)
        self.members[name].settle(self.calls[name])

    def open(self) -> list[str]:
        return [name for name, call in self.calls.items() if self.exchange.is_open_for(call)]

    async def overdue(self) -> asyncio.Task[Sequence[str]]:
        """Let the deadline pass while the last client's reply arrives and the first one's has arrived."""
        await self.exchange.arriving(self.calls["client-2"], 100)
        self.reply("client-0")
        finishing = asyncio.create_task(self.exchange.finish(1))
        async with asyncio.timeout(PATIENCE):
            await self.collector.noted.wait()
        assert self.open() == ["client-2"]
        assert not finishing.done()
        return finishing


MakeAsked: TypeAlias = Callable[..., Asked]


@pytest.fixture
def make_asked(make_member: MakeMember) -> MakeAsked:
    return lambda deadline=PATIENCE: Asked(make_member, deadline)


async def test_all_answers_are_awaited_and_listed_in_the_order_of_ids(make_asked: MakeAsked) -> None:
    asked = make_asked()
    finishing = asyncio.create_task(asked.exchange.finish(1))
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
    assert await asked.exchange.finish(1) == ["client-1"]
    assert asked.open() == []
    assert asked.collector.skipped == ["client-0", "client-2"]
    assert asked.members["client-0"].base == 0
    assert asked.members["client-0"].outstanding == {}
    assert asked.calls["client-0"].body is None


async def test_a_reply_that_is_arriving_at_the_deadline_still_counts(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    finishing = await asked.overdue()
    asked.reply("client-2")
    assert await finishing == ["client-0", "client-2"]


async def test_a_reply_whose_stream_breaks_after_the_deadline_does_not_count(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    finishing = await asked.overdue()
    asked.exchange.interrupted("client-2")
    assert await finishing == ["client-0"]


async def test_a_reply_whose_stream_breaks_before_the_deadline_may_come_again(
    make_asked: MakeAsked,
) -> None:
    asked = make_asked()
    await asked.exchange.arriving(asked.calls["client-2"], 100)
    asked.exchange.interrupted("client-2")
    assert asked.open() == list(NAMES)
    for name in NAMES:
        asked.reply(name)
    assert await asked.exchange.finish(3) == list(NAMES)


async def test_a_failure_is_told_and_nobody_waits_for_it(make_asked: MakeAsked) -> None:
    asked = make_asked()
    asked.exchange.fail(asked.calls["client-0"], "diverged")
    asked.reply("client-1")
    asked.reply("client-2")
    assert await asked.exchange.finish(2) == ["client-1", "client-2"]
    assert asked.exchange.failures == {"client-0": "diverged"}
    assert asked.calls["client-0"].outcome == "failed"


@pytest.mark.parametrize(
    ("min_replies", "answers", "enough"), [(1, 1, True), (2, 1, False), (3, 3, True), (9, 3, True)]
)
async def test_fewer_than_min_replies_stop_the_run_and_at_most_all_are_needed(
    make_asked: MakeAsked, min_replies: int, answers: int, enough: bool
) -> None:
    asked = make_asked()
    finishing = asyncio.create_task(asked.exchange.finish(min_replies))
    await asyncio.sleep(0)
    for name in NAMES[:answers]:
        asked.reply(name)
    for name in NAMES[answers:]:
        asked.exchange.fail(asked.calls[name], "diverged")
    if enough:
        assert len(await finishing) == answers
    else:
        with pytest.raises(
            TooFewRepliesError, match=r"(?s)3 of 3 clients answered, but only 1 of the .*diverged"
        ):
            await finishing


@pytest.mark.parametrize(
    "reason", ["'change' has 4 values that are not finite", "'loss' is nan, expected a finite number"]
)
async def test_answers_that_are_not_finite_are_told_from_clients_that_are_away(
    make_asked: MakeAsked, reason: str
) -> None:
    diverged = make_asked()
    finishing = asyncio.create_task(diverged.exchange.finish(1))
    await asyncio.sleep(0)
    for name in NAMES:
        diverged.exchange.fail(diverged.calls[name], reason)
    with pytest.raises(TooFewRepliesError) as caught:
        await finishing
    assert "3 of 3 clients answered, but none of the answers could be used" in str(caught.value)
    assert "has probably diverged: begin it again with a smaller step_size" in str(caught.value)
    assert f"client-2: {reason}" in str(caught.value)
    assert "--resume" not in str(caught.value)


async def test_who_is_lost_or_away_has_not_answered(make_asked: MakeAsked) -> None:
    asked = make_asked(0.05)
    finishing = asyncio.create_task(asked.exchange.finish(2))
    await asyncio.sleep(0)
    asked.exchange.fail(asked.calls["client-0"], "no memory left")
    asked.members["client-1"].lose("its disk broke")
    with pytest.raises(
        TooFewRepliesError, match=r"(?s)0 of 3 clients answered within 0\.05 s.*clients are back"
    ) as caught:
        await finishing
    assert "client-0: no memory left" in str(caught.value)
    assert "client-1: its disk broke" in str(caught.value)
    assert "diverged" not in str(caught.value)


async def test_no_reply_at_all_stops_the_run(make_asked: MakeAsked) -> None:
    asked = make_asked(0.01)
    with pytest.raises(TooFewRepliesError, match="0 of 3 clients"):
        await asked.exchange.finish(1)
    empty = Exchange("train", 4, Gathered(), accept, PATIENCE)
    with pytest.raises(TooFewRepliesError, match="0 of 0 clients"):
        await empty.finish(1)


async def test_a_call_of_another_exchange_is_not_open_here(make_asked: MakeAsked) -> None:
    first, second = make_asked(), make_asked()
    assert first.exchange.is_open_for(first.calls["client-0"])
    assert not first.exchange.is_open_for(second.calls["client-0"])
