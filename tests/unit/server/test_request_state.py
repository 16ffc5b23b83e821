"""A request decides for whom it waits and how long, from what it was told alone: no clock, no client, no message."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.fleet.request_state import SAID_EVERY, Awaited, Decision, RequestState

NAMES = ("a", "b", "c", "d", "e")
DEADLINE = 10.0
NOTHING = Decision()


def asked(*names: str, needed: int = 1, late: str = "", **how: Any) -> RequestState:
    """Ask clients at time 0."""
    state = RequestState(deadline=DEADLINE, **how)
    for name in names:
        state.expect(name, is_suspected=name in late)
    state.begin(0.0, needed)
    return state


def begun(state: RequestState, name: str, now: float) -> None:
    """Let a reply begin to arrive, and find room."""
    state.arriving(name)
    state.admitted(name, now)


# In time


def test_it_is_over_with_the_last_reply_and_only_that_affects_it() -> None:
    state = asked("a", "b", "c")
    assert state.decide(0.0) == NOTHING
    state.received("c")
    state.received("a")
    assert not state.needs_decision
    state.failed("b")
    assert state.needs_decision
    assert state.decide(2.0) == NOTHING
    assert (state.awaited, state.answered, state.is_enough) == (Awaited.NOTHING, ["c", "a"], True)


def test_who_has_not_begun_to_answer_at_the_deadline_is_late() -> None:
    state = asked("a", "b", "c")
    state.received("b")
    assert state.next_wakeup(1.0) == DEADLINE
    assert state.decide(DEADLINE - 0.001) == NOTHING
    assert state.decide(DEADLINE) == Decision(late=("a", "c"))
    assert state.awaited is Awaited.NOTHING


def test_without_a_quorum_no_reply_is_waited_for_beyond_the_deadline() -> None:
    state = asked("a", needed=0, waits=True)
    assert state.decide(DEADLINE) == Decision(late=("a",))
    assert state.is_enough


def test_a_request_to_no_client_is_over_at_once() -> None:
    state = asked(needed=0)
    assert state.decide(0.0) == NOTHING
    assert state.awaited is Awaited.NOTHING


def test_a_stream_that_breaks_before_the_deadline_may_come_again() -> None:
    state = asked("a", "b")
    begun(state, "a", 1.0)
    assert not state.interrupted("a")
    assert state.decide(2.0) == NOTHING
    assert state.waiting == {"a", "b"}


# Closing


def test_a_reply_that_is_arriving_has_another_deadline_from_when_there_is_room() -> None:
    state = asked("a", "b", "c")
    begun(state, "a", 9.0)
    state.arriving("b")
    assert state.decide(DEADLINE) == Decision(late=("c",))
    assert state.next_wakeup(DEADLINE) == 2 * DEADLINE
    state.admitted("b", 15.0)
    assert state.decide(15.0) == NOTHING
    assert state.decide(2 * DEADLINE) == Decision(late=("a",))
    assert state.next_wakeup(2 * DEADLINE) == 25.0
    assert state.decide(25.0) == Decision(late=("b",))
    assert state.awaited is Awaited.NOTHING


def test_a_stream_that_breaks_after_the_deadline_is_over() -> None:
    state = asked("a", "b")
    begun(state, "a", 9.0)
    state.decide(DEADLINE)
    assert state.interrupted("a")
    assert not state.interrupted("b"), "it was late"
    state.decide(11.0)
    assert state.awaited is Awaited.NOTHING


def test_a_reply_for_which_no_room_comes_is_kept_out_and_not_late() -> None:
    state = asked("a", "b", "c")
    state.arriving("a")
    state.arriving("b")
    begun(state, "c", 1.0)
    assert state.decide(DEADLINE) == NOTHING
    state.received("c")
    assert state.decide(15.0) == NOTHING
    assert state.next_wakeup(15.0) == 15.0 + DEADLINE, "its room may be for the others"
    assert state.decide(15.0 + DEADLINE) == Decision(kept_out=("a", "b"))
    assert state.awaited is Awaited.NOTHING


# The quorum


def test_it_waits_for_its_quorum_however_long_and_closes_when_it_is_there() -> None:
    state = asked("a", "b", "c", needed=2, waits=True)
    state.received("a")
    assert state.decide(DEADLINE) == Decision(is_short=True, tell=True)
    assert state.decide(1e6).is_short
    begun(state, "b", 1e6)
    state.interrupted("b")
    assert state.waiting == {"b", "c"}, "it may come again"
    begun(state, "c", 1e6)
    state.received("b")
    assert state.decide(1e6 + 1) == NOTHING
    assert state.awaited is Awaited.ARRIVING, "what is arriving still counts"
    state.received("c")
    state.decide(1e6 + 2)
    assert (state.awaited, state.answered) == (Awaited.NOTHING, ["a", "b", "c"])


def test_a_quorum_that_cannot_come_any_more_ends_it() -> None:
    state = asked("a", "b", "c", needed=2, waits=True)
    assert state.decide(DEADLINE).is_short
    state.failed("a")
    assert state.decide(11.0).is_short
    state.failed("b")
    assert state.decide(12.0) == Decision(late=("c",))
    assert state.awaited is Awaited.NOTHING
    assert not state.is_enough


def test_people_hear_at_once_and_then_less_and_less_often() -> None:
    state = asked("a", waits=True)
    told, now = [], DEADLINE
    while now < 20 * SAID_EVERY:
        if state.decide(now).tell:
            told.append(now)
        now = state.next_wakeup(now)
    pauses = [later - earlier for earlier, later in pairwise(told)]
    assert told[0] == DEADLINE
    assert pauses[:4] == [DEADLINE, 2 * DEADLINE, 4 * DEADLINE, 8 * DEADLINE]
    assert set(pauses[12:]) == {SAID_EVERY}


def test_people_do_not_hear_at_once_where_what_arrives_is_enough() -> None:
    state = asked("a", "b", needed=2, waits=True)
    begun(state, "a", 1.0)
    begun(state, "b", 1.0)
    assert state.decide(DEADLINE) == Decision(is_short=True)
    assert state.next_wakeup(DEADLINE) == 2 * DEADLINE
    assert state.decide(2 * DEADLINE).tell


# Replies that wait for their turn behind others


def test_who_is_away_does_not_keep_back_others_that_are_enough() -> None:
    state = asked(*NAMES, needed=3, waits=True)
    for name in "bcd":
        state.arriving(name)
    assert state.decide(DEADLINE, holds_back=True) == Decision(late=("a", "e"), is_short=True)
    assert state.waiting == {"b", "c", "d"}


def test_who_stalls_is_given_up_when_its_time_is_over_if_the_others_are_enough() -> None:
    state = asked("a", "b", "c", needed=2, waits=True)
    begun(state, "a", 1.0)  # its turn, and nothing more comes
    state.arriving("b")
    state.arriving("c")
    assert state.decide(DEADLINE, holds_back=True) == Decision(is_short=True)
    assert state.next_wakeup(DEADLINE) == 2 * DEADLINE
    assert state.decide(2 * DEADLINE, holds_back=True) == Decision(late=("a",), is_short=True)


def test_no_client_is_given_up_that_the_quorum_needs() -> None:
    state = asked("a", "b", "c", needed=3, waits=True)
    begun(state, "a", 1.0)
    state.arriving("b")
    for now in (DEADLINE, 3 * DEADLINE, 1e6):
        assert state.decide(now, holds_back=True).late == ()


# Suspected


def test_who_is_suspected_is_dropped_once_all_others_have_answered_or_begun_to() -> None:
    state = asked("a", "b", "c", late="c")
    assert state.decide(0.0) == NOTHING
    state.received("a")
    assert state.needs_decision
    assert state.decide(1.0) == NOTHING
    begun(state, "b", 2.0)
    assert state.decide(2.0) == Decision(suspected=("c",))
    assert state.waiting == {"b"}
    state.received("b")
    state.decide(3.0)
    assert state.awaited is Awaited.NOTHING


def test_even_where_its_reply_is_arriving() -> None:
    state = asked("a", "b", late="b")
    begun(state, "b", 1.0)
    state.received("a")
    assert state.decide(2.0) == Decision(suspected=("b",))


def test_it_is_dropped_also_where_the_deadline_has_passed_before_that_is_seen() -> None:
    state = asked("a", "b", late="a", waits=True)
    state.arriving("b")
    # The event loop was busy: what arrived and the deadline are seen at once.
    assert state.decide(DEADLINE + 1, holds_back=True) == Decision(suspected=("a",), is_short=True)


@pytest.mark.parametrize("waits", [False, True])
def test_it_is_waited_for_where_the_quorum_needs_it(waits: bool) -> None:
    state = asked("a", "b", needed=2, late="b", waits=waits)
    state.received("a")
    assert state.decide(1.0) == NOTHING
    assert state.decide(DEADLINE) == (Decision(is_short=True, tell=True) if waits else Decision(late=("b",)))


def test_replies_that_are_held_back_behind_it_do_not_wait_for_it() -> None:
    state = asked("a", "b", late="a")
    state.arriving("b")
    assert state.decide(1.0) == NOTHING
    assert state.decide(1.0, holds_back=True) == Decision(suspected=("a",))


# Whatever happens

STIMULI = st.lists(
    st.tuples(
        st.sampled_from(["arriving", "admitted", "interrupted", "received", "failed", "nothing"]),
        st.sampled_from(NAMES),
        st.floats(0, 30),
        st.booleans(),
        st.booleans(),
    ),
    max_size=40,
)


@given(STIMULI, st.integers(0, 5), st.booleans(), st.sets(st.sampled_from(NAMES)))
def test_whatever_happens_each_client_is_settled_once_and_no_decision_comes_too_late(
    stimuli: list[tuple[str, str, float, bool, bool]], needed: int, waits: bool, late: set[str]
) -> None:
    state = asked(*NAMES, needed=needed, waits=waits, late="".join(late))
    now, settled = 0.0, list[str]()

    def decide(at: float, holds_back: bool) -> Decision:
        before = state.awaited
        decision = state.decide(at, holds_back=holds_back)
        settled.extend((*decision.late, *decision.suspected, *decision.kept_out))
        assert not decision.late or at >= DEADLINE, "no client is late before the deadline"
        if decision.is_short:
            assert len(state.answered) < needed <= len(state.answered) + len(state.waiting), "it can still come"
        if before is state.awaited and state.awaited is not Awaited.NOTHING:
            assert state.next_wakeup(at) > at or decision != NOTHING
        return decision

    decide(now, False)
    for what, client, pause, holds_back, is_busy in stimuli:
        if state.awaited is Awaited.NOTHING:
            break
        wakeup = state.next_wakeup(now)
        assert wakeup < math.inf
        if now + pause >= wakeup and not is_busy:  # time comes first
            now = wakeup
            decide(now, holds_back)
            continue
        now += pause  # else the event loop was busy, and sees both at once
        if client in state.waiting:
            match what:
                case "arriving":
                    state.arriving(client)
                case "admitted":
                    begun(state, client, now)
                case "interrupted":
                    settled += [client] if state.interrupted(client) else []
                case "received":
                    state.received(client)
                    settled.append(client)
                case "failed":
                    state.failed(client)
                    settled.append(client)
        if not state.needs_decision and now < wakeup:
            awaited = state.awaited
            assert state.decide(now, holds_back=holds_back) == NOTHING, "nothing had to be done"
            assert state.awaited is awaited
        decide(now, holds_back)

    for _ in range(20):  # nothing more comes
        if state.awaited is Awaited.NOTHING or state.awaited is Awaited.QUORUM:
            break
        now = state.next_wakeup(now)
        decide(now, False)
    assert state.awaited is Awaited.NOTHING or (waits and not state.is_enough)
    assert sorted([*settled, *state.waiting]) == sorted(NAMES)
