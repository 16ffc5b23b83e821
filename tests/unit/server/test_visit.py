"""Replies are looked at once each, in the order of client ids, whatever order they arrive in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import PayloadError, TooFewRepliesError
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import Network
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.collectors import VisitCollector
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.question import Each
from fenchel.fleet.request import Request
from tests.messages import raises
from tests.reservations import InRoom, roomy
from tests.unit.server.conftest import settled

MIB = 1 << 20
CLIENTS = [f"client-{i}" for i in range(5)]


def number(client: str) -> dict[str, Value]:
    return {"x": float(CLIENTS.index(client))}


@given(order=st.permutations(CLIENTS), skipped=st.sets(st.sampled_from(CLIENTS)))
def test_replies_are_taken_in_order_and_as_soon_as_it_is_their_turn(order: list[str], skipped: set[str]) -> None:
    taken: list[str] = []
    collector = InRoom(VisitCollector(CLIENTS, 1, lambda client, reply: taken.append(client)), roomy(CLIENTS, 1))
    arrived: set[str] = set()
    for client in order:
        if client in skipped:
            collector.skip(client)
        else:
            collector.add(client, number(client))
        arrived.add(client)
        turn = next((i for i, name in enumerate(CLIENTS) if name not in arrived), len(CLIENTS))
        assert taken == [name for name in CLIENTS[:turn] if name not in skipped]


def test_a_reply_is_handed_on_as_it_is() -> None:
    taken: dict[str, Mapping[str, Value]] = {}
    collector = InRoom(VisitCollector(["a", "b"], 1, taken.__setitem__), roomy(["a", "b"], 1))
    replies: list[dict[str, Value]] = [{"x": np.arange(3.0)}, {"y": "text"}]
    collector.add("b", replies[1])
    collector.add("a", replies[0])
    assert taken["a"] is replies[0]
    assert taken["b"] is replies[1]
    assert list(taken) == ["a", "b"]


async def test_what_comes_before_its_turn_waits_for_room_and_the_next_one_never_does() -> None:
    taken: list[str] = []
    collector = InRoom(
        VisitCollector(CLIENTS, 4 * MIB, lambda client, reply: taken.append(client)), roomy(CLIENTS, 4 * MIB)
    )
    await collector.admit("client-2", 3 * MIB)
    early = asyncio.create_task(collector.admit("client-1", 3 * MIB))
    await settled()
    assert not early.done()
    await collector.admit("client-0", 100 * MIB)
    collector.add("client-2", number("client-2"))
    await settled()
    assert not early.done(), "client 2 still fills the buffer: it is not its turn"
    collector.add("client-0", number("client-0"))
    await settled()
    assert early.done(), "now it is the next one"
    collector.add("client-1", number("client-1"))
    assert taken == ["client-0", "client-1", "client-2"]


async def test_a_reply_that_cannot_be_taken_keeps_no_room_and_no_other_from_its_turn() -> None:
    taken: list[str] = []

    def look(client: str, reply: Mapping[str, Value]) -> None:
        if client == "client-1":
            raise ValueError("of a kind that nothing can be done with")
        taken.append(client)

    room = roomy(CLIENTS, 2 * MIB)
    collector = InRoom(VisitCollector(CLIENTS, 2 * MIB, look), room)
    await collector.admit("client-1", 2 * MIB)
    collector.add("client-1", number("client-1"))
    await collector.admit("client-0", 2 * MIB)
    with pytest.raises(ValueError):
        collector.add("client-0", number("client-0"))
    assert room.held == 0
    await collector.admit("client-2", 5 * MIB)
    collector.add("client-2", number("client-2"))
    assert taken == ["client-0", "client-2"]


async def test_who_is_skipped_lets_the_next_one_in() -> None:
    collector = InRoom(VisitCollector(CLIENTS, MIB, lambda client, reply: None), roomy(CLIENTS, MIB))
    waiting = asyncio.create_task(collector.admit("client-1", 2 * MIB))
    await settled()
    assert not waiting.done()
    collector.skip("client-0")
    await settled()
    assert waiting.done()


# The whole exchange, with members that nobody serves


class Fleeting(Fleet):
    """A fleet whose exchanges can be reached, so that a test can answer them."""

    def calls_of(self, client: str) -> Call:
        return next(call for call in self.calls if call.client == client)

    def answer(self, *clients: str) -> None:
        for client in clients:
            call = self.calls_of(client)
            exchange_of(call).receive(call, number(client))


def fleet_of(clients: int, deadline: float = 5.0) -> Fleeting:
    members = {name: ClientRecord(name) for name in CLIENTS[:clients]}
    return Fleeting(
        members=members,
        seed=0,
        participation=Participation(deadline=deadline),
        network=Network(reply_buffer_bytes=4 * MIB),
    )


def exchange_of(call: Call) -> Request:
    assert isinstance(call.request, Request)
    return call.request


async def test_a_cohort_is_visited_in_order_and_who_answered_is_told() -> None:
    fleet, taken = fleet_of(4), []

    def take(client: str, reply: Values) -> None:
        taken.append((client, reply["x"]))

    cohort = Cohort(fleet, ("client-3", "client-0", "client-1", "client-3"))
    scales = Each[Value]({client: float(i) for i, client in enumerate(CLIENTS)})
    visiting = asyncio.create_task(cohort.visit("train", take, returns={"x": float}, scale=scales))
    await settled()
    assert [call.client for call in fleet.calls] == ["client-0", "client-1", "client-3"], "each is asked once"
    fleet.answer("client-3", "client-0")
    call = fleet.calls_of("client-1")
    exchange_of(call).fail(call, "out of memory")
    answered = await visiting
    assert taken == [("client-0", 0.0), ("client-3", 3.0)]
    assert answered.clients == ("client-0", "client-3")
    assert answered.draws == ("client-3", "client-0", "client-3"), "draws are kept, with their multiplicity"


async def test_an_error_of_the_algorithms_function_ends_the_request_at_once() -> None:
    fleet = fleet_of(3, deadline=3600.0)
    seen: list[str] = []

    def take(client: str, reply: Values) -> None:
        seen.append(client)
        raise ValueError("of a kind that nothing can be done with")

    visiting = asyncio.create_task(fleet.all().visit("train", take, returns={"x": float}))
    await settled()
    fleet.answer("client-1", "client-0")  # no error for the stream of the client that came last
    with pytest.raises(ValueError):
        await visiting
    assert seen == ["client-0"]
    assert not fleet.members["client-2"].outstanding


async def test_a_reply_that_is_not_what_was_asked_for_is_refused_by_name() -> None:
    fleet = fleet_of(1)
    visiting = asyncio.create_task(fleet.all().visit("train", lambda c, r: None, returns={"x": float}))
    await settled()
    call = fleet.calls_of("client-0")
    with raises(PayloadError, round=0, phase="train", client="client-0"):
        exchange_of(call).check("client-0", {"y": 1.0}, False)
    with raises(PayloadError, round=0, phase="train", client="client-0", array="x"):
        exchange_of(call).check("client-0", {"x": float("nan")}, False)
    exchange_of(call).receive(call, {"x": 1.0})
    await visiting


async def test_lost_clients_are_passed_over_and_the_late_ones_dropped() -> None:
    fleet, taken = fleet_of(3, deadline=0.05), list[str]()
    fleet.participation = Participation(deadline=0.05, on_lost_state="continue")
    fleet.members["client-0"].lost = "its journal is gone"
    cohort = Cohort(fleet, tuple(CLIENTS[:3]))
    visiting = asyncio.create_task(
        cohort.visit("train", lambda client, reply: taken.append(client), returns={"x": float})
    )
    await settled()
    fleet.answer("client-2")
    answered = await visiting
    assert taken == ["client-2"]
    assert answered.clients == ("client-2",)


@pytest.mark.parametrize("min_replies", [None, 0])
async def test_nobody_need_answer_only_if_that_is_said(min_replies: int | None) -> None:
    fleet = fleet_of(2, deadline=0.02)
    fleet.participation = Participation(deadline=0.02, on_shortage="stop")
    visit = fleet.all().visit("train", lambda c, r: None, returns={"x": float}, min_replies=min_replies)
    if min_replies is None:
        with raises(TooFewRepliesError, round=0, phase="train"):
            await visit
    else:
        assert (await visit).clients == ()
