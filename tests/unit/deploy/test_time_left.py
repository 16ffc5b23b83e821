"""The time left follows the last rounds and their evaluations."""

from __future__ import annotations

import math

import pytest

from fenchel.deploy.monitoring.time_left import TimeLeft


def after(*rounds: tuple[float, float], planned: int = 100) -> float | None:
    """Return the estimate after rounds of these seconds, and seconds of evaluation."""
    left = TimeLeft(planned)
    for number, (seconds, evaluation) in enumerate(rounds, 1):
        left.round_ended({"round": number, "seconds": seconds, "evaluation_s": evaluation})
    return left.seconds


def test_two_rounds_are_too_few() -> None:
    assert after() is None
    assert after((1.0, 0.0), (1.0, 0.0)) is None


def test_one_slow_round_changes_nothing() -> None:
    assert after((60.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)) == pytest.approx(96.0)


def test_rare_evaluations_count_by_their_share() -> None:
    assert after(*[(1.0, 0.0), (1.0, 3.0)] * 5) == pytest.approx(90 * 2.5)
    assert after(*[(1.0, math.nan)] * 10) == pytest.approx(90.0)


def test_only_the_last_rounds_count() -> None:
    assert after(*[(10.0, 1.0)] * 40, *[(1.0, 0.0)] * 20) == pytest.approx(40.0)


def test_after_the_last_round_nothing_is_left() -> None:
    assert after(*[(1.0, 0.0)] * 5, planned=5) is None
