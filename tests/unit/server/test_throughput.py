"""Bytes over the rate of the link are told apart from the time that the first of them is on its way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.fleet.metering.throughput import Throughput

FRAME = 1 << 20


def test_a_message_of_several_frames_shows_its_rate_itself() -> None:
    rate, delay = 1e6, 0.05
    size = 4 * FRAME
    spread = (size - FRAME) / rate
    found = Throughput().serialisation(size, FRAME, spread, delay + size / rate)
    assert found == pytest.approx(size / rate)


@given(rate=st.floats(1e4, 1e8), delay=st.floats(0.0, 0.5), skew=st.floats(-0.2, 0.2))
def test_single_frames_are_told_from_the_delay_by_the_quickest_small_message(
    rate: float, delay: float, skew: float
) -> None:
    """``skew``: what is wrong with the alignment of the clocks; it must cancel out."""
    throughput = Throughput()
    throughput.serialisation(100, 100, 0.0, delay + skew + 1.0 + 100 / rate)
    size = FRAME // 2
    crossing = delay + skew + 1.0 + size / rate
    assert throughput.serialisation(size, size, 0.0, crossing) == pytest.approx(
        min(size / rate, crossing), rel=0.01, abs=1e-6
    )


def test_single_frames_take_the_rate_of_those_before_them() -> None:
    throughput = Throughput()
    throughput.serialisation(4 * FRAME, FRAME, 3.0 * FRAME / 1e6, 60.0)
    assert throughput.serialisation(500_000, 500_000, 0.0, 60.0) == pytest.approx(0.5)


def test_a_slow_message_does_not_slow_the_link() -> None:
    throughput = Throughput()
    throughput.serialisation(100, 100, 0.0, 0.01)
    for crossing in (0.51, 9.0):  # the second one met a busy receiver
        found = throughput.serialisation(500_000, 500_000, 0.0, crossing)
    assert found == pytest.approx(0.5)


def test_serialisation_never_exceeds_the_crossing_and_nothing_is_claimed_without_a_measurement() -> None:
    throughput = Throughput()
    assert throughput.serialisation(500_000, 500_000, 0.0, 3.0) == 0.0
    assert throughput.serialisation(4 * FRAME, 100, 10.0, 2.0) == 2.0
    assert throughput.serialisation(100, 100, 0.0, -1.0) == 0.0
    assert math.isfinite(throughput.rate)
