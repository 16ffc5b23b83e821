"""A round's time is divided without a remainder where every stamp is known, and says so where they do not fit."""

from __future__ import annotations

import math

import pytest

from fenchel.fleet.calls import Call, Outcome
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.telemetry.time_breakdown import CallBreakdown, split
from tests.unit.server.conftest import request_of

MS = 1_000_000


def at(milliseconds: int) -> int:
    """A moment after the round began; a stamp of 0 would be none."""
    return (1_000 + milliseconds) * MS


def request(started: int, posted: int, ended: int) -> Request:
    made = request_of()
    made.started_ns, made.posted_ns, made.ended_ns = at(started), at(posted), at(ended)
    return made


def timing(**milliseconds: int) -> pb.Timing:
    return pb.Timing(**{f"{name}_ns": value * MS for name, value in milliseconds.items()})


def answered(asked: Request, client: str, sent: int, received: int, told: pb.Timing, **others: int) -> Call:
    """A call of the exchange: queued when all were posted, 1 ms to decode and 2 ms to check and combine."""
    call = Call(client=client, sequence=1, base=0, phase="train", round=1, kind=pb.ASK, body=None, request=asked)
    call.queued_ns, call.first_sent_ns = asked.posted_ns, at(sent)
    call.last_received_ns, call.decoded_ns = at(received), at(received + 1)
    call.taken_ns = at(received + 3)
    call.held_ns = others.get("held", 0) * MS
    call.serialisation = others.get("serialisation", 0) / 1e3
    call.timing, call.outcome = told, "counted"
    return call


WORK = {"queue": 3, "decode": 1, "compute": 40, "encrypt": 6, "decrypt": 4, "encode": 2, "journal": 5, "handover": 2}
"""63 ms on the client."""


def test_a_round_is_the_slowest_call_of_each_exchange_and_the_servers_work_between() -> None:
    first, second = request(10, 12, 130), request(150, 150, 200)
    calls = [
        answered(first, "quick", 14, 60, timing(compute=20, answer=20)),
        answered(first, "slow", 15, 125, timing(**WORK, answer=63), held=4, serialisation=30),
        answered(second, "quick", 150, 190, timing(compute=30, answer=30)),
    ]
    found = split(at(5), at(230), calls)
    assert found.parts.compute == pytest.approx(0.070)
    assert found.parts.encryption == pytest.approx(0.010)
    assert found.parts.coding == pytest.approx((2 + 8 + 1 + 1) / 1e3)  # broadcast, client, two replies
    assert found.parts.network == pytest.approx((110 - 63 - 4 + 10) / 1e3)
    assert found.parts.serialisation == pytest.approx(0.030)
    assert found.parts.queueing == pytest.approx((3 + 4 + 3 + 2) / 1e3)
    assert found.parts.waiting == pytest.approx((2 + 7) / 1e3)
    assert found.parts.server == pytest.approx((5 + 2 + 20 + 2 + 30) / 1e3)
    assert found.idle == pytest.approx((128 - 63) / 2 / 1e3)
    assert found.parts.total == pytest.approx(0.225)


def test_what_the_clients_stamps_leave_open_is_not_accounted_for() -> None:
    asked = request(0, 0, 100)
    told = timing(compute=40, answer=60)  # 20 ms of which nobody knows
    found = split(at(0), at(100), [answered(asked, "a", 0, 97, told)])
    assert found.parts.total == pytest.approx(0.080)


def test_a_client_that_claims_more_than_there_was_makes_the_sum_too_large_and_no_part_negative() -> None:
    asked = request(0, 0, 100)
    found = split(at(0), at(100), [answered(asked, "a", 0, 97, timing(compute=5000))])
    assert found.parts.network == 0.0
    assert found.parts.total > 5


def test_work_that_is_older_than_the_answer_is_no_network() -> None:
    """A stream broke after the client had computed; it sent its stored reply on the next one, at once."""
    asked = request(0, 0, 100)
    call = answered(asked, "a", 0, 97, timing(compute=80, answer=1))
    assert CallBreakdown.of(call).network == pytest.approx(0.017)


def test_an_exchange_without_an_answer_is_waited_for() -> None:
    asked = request(0, 1, 90)
    call = Call(client="a", sequence=1, base=0, phase="train", round=1, kind=pb.ASK, body=None, request=asked)
    found = split(at(0), at(100), [call])
    assert (found.parts.waiting, found.parts.server) == pytest.approx((0.089, 0.010))
    assert found.parts.total == pytest.approx(0.1)
    assert math.isnan(CallBreakdown.of(call).until_decoded)


@pytest.mark.parametrize("outcome", ["late", "failed"])
def test_answers_that_do_not_count_are_waited_for_but_their_parts_are_not_the_rounds(outcome: Outcome) -> None:
    asked = request(0, 0, 100)
    calls = [
        answered(asked, "a", 0, 27, timing(compute=20, answer=20)),
        answered(asked, "b", 0, 90, timing(compute=80, answer=80)),
    ]
    calls[1].outcome = outcome
    found = split(at(0), at(100), calls)
    assert (found.parts.compute, found.parts.waiting) == pytest.approx((0.020, 0.070))


def test_an_exchange_beside_another_is_not_counted_twice() -> None:
    short, long = request(5, 5, 40), request(0, 0, 100)
    calls = [
        answered(short, "a", 5, 37, timing(compute=30, answer=30)),
        answered(long, "b", 0, 97, timing(compute=90, answer=90)),
    ]
    found = split(at(0), at(100), calls)
    assert found.parts.compute == pytest.approx(0.090)
    assert found.parts.total == pytest.approx(0.1)


def test_a_round_without_exchange_is_the_servers() -> None:
    told = Call(client="a", sequence=1, base=0, phase="shift", round=1, kind=pb.TELL, body=None)
    assert split(at(0), at(50), [told]).parts.server == pytest.approx(0.05)


def test_what_is_encoded_for_others_is_not_queueing() -> None:
    """The first client's instruction was ready at 2 ms, and the last one's at 30 ms: until then nothing is sent."""
    asked = request(0, 30, 100)
    call = answered(asked, "a", 31, 97, timing(compute=60, answer=60))
    call.queued_ns = at(2)
    found = split(at(0), at(100), [call])
    assert (found.parts.coding, found.parts.queueing) == pytest.approx((0.031, 0.001))
    assert CallBreakdown.of(call).parts.queueing == pytest.approx(0.029)  # that client did wait
    assert found.parts.total == pytest.approx(0.1)


def test_the_time_of_a_client_that_comes_late_is_absence_and_no_queueing() -> None:
    """It was asked at 1 ms, while others were still being asked, came at 60 ms and got its instruction 2 ms later."""
    asked = request(0, 5, 100)
    call = answered(asked, "a", 62, 97, timing(compute=30, answer=30))
    call.queued_ns, call.away_ns = at(1), 59 * MS
    found = split(at(0), at(100), [call])
    assert (found.parts.away, found.parts.queueing, found.parts.coding) == pytest.approx((0.055, 0.002, 0.006))
    assert found.parts.network == pytest.approx(0.005)
    assert found.parts.total == pytest.approx(0.1)


def test_the_time_of_a_client_that_loses_its_stream_is_absence_and_no_network() -> None:
    asked = request(0, 0, 100)
    call = answered(asked, "a", 0, 97, timing(compute=30, answer=30))
    call.broken_ns = 50 * MS
    found = split(at(0), at(100), [call])
    assert (found.parts.away, found.parts.network) == pytest.approx((0.050, 0.017))
    assert found.parts.total == pytest.approx(0.1)


def test_work_that_goes_on_without_a_stream_is_work() -> None:
    """The stream was gone for 50 of the 80 ms that it computed."""
    asked = request(0, 0, 100)
    call = answered(asked, "a", 0, 97, timing(compute=80, answer=85, queue=5))
    call.broken_ns = 50 * MS
    found = split(at(0), at(100), [call])
    assert (found.parts.compute, found.parts.away, found.parts.network) == pytest.approx((0.080, 0.012, 0.0))
    assert found.parts.total == pytest.approx(0.1)
