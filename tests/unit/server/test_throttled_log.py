"""What the log says of one client: lines that matter are there, and no client fills the disk with them."""

from __future__ import annotations

import logging

import pytest

from fenchel.fleet.metering.throttled_log import AT_ONCE, EVERY, ThrottledLog


def test_two_errors_in_turn_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    throttled_log = ThrottledLog(lambda: now)
    hours = 2.0
    for call in range(int(hours * 3600 * 20)):
        now = call / 20
        throttled_log.add(logging.WARNING, "a", f"client a: error {call % 2}")
    assert len(caplog.messages) <= AT_ONCE + hours * 3600 / EVERY
    assert caplog.messages[0] == "client a: error 0"
    assert any("more lines about this client were omitted" in line for line in caplog.messages)


def test_the_same_line_is_written_once(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    throttled_log = ThrottledLog(lambda: now)
    for call in range(100):
        now = 60.0 * call
        throttled_log.add(logging.WARNING, "a", "client a: the same")
    assert caplog.messages == ["client a: the same"]


def test_one_client_does_not_silence_another(caplog: pytest.LogCaptureFixture) -> None:
    throttled_log = ThrottledLog(lambda: 0.0)
    for call in range(100):
        throttled_log.add(logging.WARNING, "a", f"client a: error {call}")
    throttled_log.add(logging.ERROR, "b", "client b is refused")
    assert len(caplog.messages) == AT_ONCE + 1
    assert caplog.records[-1].levelno == logging.ERROR
    assert caplog.messages[-1] == "client b is refused"


def test_after_a_quiet_time_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    throttled_log = ThrottledLog(lambda: now)
    for call in range(AT_ONCE + 7):
        throttled_log.add(logging.WARNING, "a", f"client a: error {call}")
    now = EVERY
    throttled_log.add(logging.WARNING, "a", "client a: another")
    throttled_log.add(logging.WARNING, "a", "client a: too many")
    assert caplog.messages[AT_ONCE:] == ["client a: another (7 more lines about this client were omitted)"]
