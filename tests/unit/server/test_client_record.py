"""The record of a client knows which instruction counts last, and which promises are not confirmed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pytest

from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.checkpoint import take
from tests.unit.server.conftest import body, request_of


@dataclass
class Nothing:
    """The state of an algorithm that has none."""


def ask(member: ClientRecord, request: Request | None = None, kind: pb.Kind.ValueType = pb.ASK) -> Call:
    request = request or request_of()
    call = member.post("train", 1, kind, body(), request)
    request.expect(member, call)
    return call


def tell(member: ClientRecord) -> Call:
    return member.post("shift", 1, pb.TELL, body())


def answered(member: ClientRecord, call: Call) -> None:
    assert call.request is not None
    call.request.receive(call, {})
    member.resolve(call)


def test_sequence_numbers_increase_and_a_counted_answer_becomes_the_base(member: ClientRecord) -> None:
    first = ask(member)
    assert (first.sequence, first.base, member.base) == (1, 0, 0)
    answered(member, first)
    second = ask(member)
    assert (second.sequence, second.base) == (2, 1)


def test_an_answer_that_did_not_count_is_not_the_base(member: ClientRecord) -> None:
    failed = ask(member)
    assert failed.request is not None
    failed.request.fail(failed, "no")
    assert (member.base, member.outstanding) == (0, {})
    following = ask(member)
    assert (following.sequence, following.base) == (2, 0)


def test_a_promise_counts_as_soon_as_it_is_made(member: ClientRecord) -> None:
    calls = [tell(member), tell(member)]
    assert [(call.sequence, call.base) for call in calls] == [(1, 0), (2, 1)]
    assert member.base == 2
    assert list(member.pending_tells()) == calls
    assert ask(member).base == 2


def test_an_inspection_changes_no_base(member: ClientRecord) -> None:
    call = ask(member, kind=pb.INSPECT)
    answered(member, call)
    assert (member.base, member.next_sequence) == (0, 2)


@pytest.mark.parametrize("kind", [pb.ASK, pb.TELL, pb.INSPECT])
def test_nothing_is_posted_while_a_question_is_open(member: ClientRecord, kind: pb.Kind.ValueType) -> None:
    ask(member)
    with pytest.raises(RuntimeError):
        member.post("shift", 1, kind, body(), None if kind == pb.TELL else request_of())


def test_a_settled_call_lets_go_of_its_body(member: ClientRecord) -> None:
    call = ask(member)
    assert call.body is not None
    size = call.body.size
    member.resolve(call)
    assert call.body is None
    assert call.body_bytes == size


def test_an_instruction_is_queued_for_the_open_stream_only(member: ClientRecord) -> None:
    tell(member)
    assert not member.connected
    member.queue = asyncio.Queue()
    later = tell(member)
    assert member.connected
    assert member.queue.get_nowait() == later.sequence
    assert member.queue.empty()


def test_how_long_a_client_is_away_is_noted_with_what_waits_for_it(
    member: ClientRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now)
    call = ask(member)
    call.queued_ns, now = 10, 15
    first: asyncio.Queue[int | pb.Farewell] = asyncio.Queue()
    member.attach(first)
    assert (first.get_nowait(), member.streams) == (call.sequence, 1)
    assert (call.away_ns, call.broken_ns) == (5, 0)
    call.first_sent_ns = 16
    now = 20
    member.detach(first)
    assert not member.connected
    now = 32
    second: asyncio.Queue[int | pb.Farewell] = asyncio.Queue()
    member.attach(second)
    member.detach(first)  # the older stream ends later
    assert member.connected
    assert second.get_nowait() == call.sequence
    now = 40
    member.detach(second)
    now = 41
    member.attach(asyncio.Queue())
    assert (call.away_ns, call.broken_ns) == (5, 12 + 1)


def hello(*snapshots: int, stateless: bool = False) -> pb.Hello:
    return pb.Hello(snapshots=snapshots, stateless=stateless)


@pytest.mark.parametrize(
    ("snapshots", "possible"), [((), False), ((1,), False), ((2,), True), ((1, 2), True), ((2, 3), True), ((3,), False)]
)
def test_a_client_must_still_have_the_state_that_counts(
    member: ClientRecord, snapshots: tuple[int, ...], possible: bool
) -> None:
    answered(member, ask(member))
    answered(member, ask(member))
    assert member.can_restore(hello(*snapshots)) == possible


@pytest.mark.parametrize(
    ("snapshots", "possible", "left"),
    [
        ((), False, [2, 3, 4]),
        ((1,), True, [2, 3, 4]),
        ((1, 2), True, [2, 3, 4]),
        ((2,), True, [2, 3, 4]),
        ((2, 3), True, [3, 4]),
        ((3, 4), True, [4]),
        ((4, 5), True, [4]),
        ((5,), False, [2, 3, 4]),
    ],
)
def test_a_promise_in_the_journal_proves_those_before_it_kept(
    member: ClientRecord, snapshots: tuple[int, ...], possible: bool, left: list[int]
) -> None:
    answered(member, ask(member))
    for _ in range(3):
        tell(member)
    assert member.can_restore(hello(*snapshots)) == possible
    member.confirm(hello(*snapshots))
    assert list(member.outstanding) == left


def test_an_answer_that_counts_proves_the_promises_before_it_kept(member: ClientRecord) -> None:
    told = []
    for _ in range(40):  # a client that answers, and never confirms
        told.append(tell(member))
        answered(member, ask(member))
        assert not member.outstanding
    assert [(call.outcome, call.body) for call in told] == [("confirmed", None)] * 40
    later = tell(member)
    assert list(member.pending_tells()) == [later]


def test_an_answer_proves_also_what_was_promised_before_the_server_was_restarted(member: ClientRecord) -> None:
    answered(member, ask(member))
    told = [tell(member), tell(member)]
    again = take("run", 1, 0, Nothing(), {member.name: member}).restore()[member.name]
    assert [call.sequence for call in again.pending_tells()] == [call.sequence for call in told]
    answered(again, ask(again))
    assert not again.outstanding


def test_what_proves_no_state_settles_no_promise(member: ClientRecord) -> None:
    promise = tell(member)
    answered(member, ask(member, kind=pb.INSPECT))
    failed = ask(member)
    assert failed.request is not None
    failed.request.fail(failed, "no")
    late = ask(member)
    member.resolve(late)
    assert list(member.pending_tells()) == [promise]
    assert promise.outcome == "promised"
    assert promise.body is not None


def test_a_client_without_state_can_always_come_back(member: ClientRecord) -> None:
    answered(member, ask(member))
    tell(member)
    assert member.can_restore(hello(stateless=True))
    member.confirm(hello(stateless=True))
    assert len(member.outstanding) == 1


def test_an_instruction_never_asks_to_forget_its_own_base(member: ClientRecord) -> None:
    answered(member, ask(member))
    promises = [tell(member), tell(member)]
    member.low_water_mark = member.base  # a checkpoint was written before the promises were kept
    assert [call.head(member.low_water_mark).low_water_mark for call in promises] == [1, 2]
    assert ask(member).head(member.low_water_mark).low_water_mark == 3


def test_what_a_client_has_to_catch_up_on_is_counted_until_it_is_done(member: ClientRecord) -> None:
    size = body().size
    first, second = tell(member), tell(member)
    each = member.owed_bytes // 2
    assert each > size
    member.resolve(first)
    assert member.owed_bytes == each
    member.resolve(first)  # a repeated confirmation settles nothing
    assert member.owed_bytes == each
    answered(member, question := ask(member))
    assert question.outcome == "counted"
    assert member.owed_bytes == 0  # its answer proves all promises kept
    assert second.outcome == "confirmed"


def test_a_checkpoint_knows_what_a_client_has_to_catch_up_on(member: ClientRecord) -> None:
    tell(member)
    tell(member)
    restored = take("run", 1, 0, Nothing(), {member.name: member}).restore()[member.name]
    assert restored.owed_bytes == member.owed_bytes > 0


def test_a_lost_client_answers_and_owes_nothing_more_and_hears_so_if_it_is_there(member: ClientRecord) -> None:
    member.queue = asyncio.Queue()
    tell(member)
    call = ask(member)
    member.mark_lost("it is slow to follow")
    assert member.lost == "it is slow to follow"
    assert (member.owed_bytes, member.outstanding) == (0, {})  # nothing is left to be sent
    assert isinstance(call.request, Request)
    assert call.request.failures == {"client-0": "it is slow to follow"}
    assert not call.request.is_open_for(call)
    *waiting, farewell = (member.queue.get_nowait() for _ in range(3))
    assert waiting == [1, 2]
    assert isinstance(farewell, pb.Farewell)
    assert not farewell.completed
    assert "it is slow to follow" in farewell.reason


def test_who_is_given_up_was_away_until_then(member: ClientRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 50)
    call = ask(member)
    call.queued_ns = 20
    member.resolve(call)
    member.resolve(call)
    assert call.away_ns == 30
