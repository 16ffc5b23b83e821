"""The offset of a client's clock is found from messages alone, and its error is never understated."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.fleet.metering.clock_offset import Clock, Offset

SECOND = 10**9
START = 1_800_000_000 * SECOND


class Simulation:
    """A client whose clock is off and runs at its own speed, and a network of unlike directions."""

    def __init__(self, *, offset: float, drift: float, down: float, up: float, jitter: float, seed: int) -> None:
        self.offset, self.drift = offset, drift
        self.delays = down, up
        self.jitter = jitter
        self.chance = random.Random(seed)
        self.clock = Clock()

    def truth(self, now: float) -> float:
        """The server's clock minus the client's."""
        return self.offset + self.drift * now

    def client(self, now: float) -> int:
        return START + round((now - self.truth(now)) * SECOND)

    def server(self, now: float) -> int:
        return START + round(now * SECOND)

    def request(self, now: float, work: float = 0.01) -> Offset:
        """Send an instruction and receive its reply; return the estimate then."""
        down, up = (delay + self.chance.expovariate(1) * self.jitter for delay in self.delays)
        arrived = now + down
        self.clock.sent(self.server(now), self.client(arrived))
        replied = arrived + work
        self.clock.heard(self.client(replied), self.server(replied + up))
        found = self.clock.at(self.server(replied + up))
        assert found is not None
        return found


def error(simulation: Simulation, now: float, found: Offset) -> float:
    return abs(found.ns / SECOND - simulation.truth(now))


delays = st.floats(0.0, 0.3)


@given(
    offset=st.floats(-3600, 3600),
    drift=st.floats(-5e-5, 5e-5),
    down=delays,
    up=delays,
    jitter=st.floats(0.0, 0.2),
    gap=st.floats(0.1, 300.0),
    seed=st.integers(0, 99),
)
def test_the_truth_is_never_further_away_than_the_error_says(
    offset: float, drift: float, down: float, up: float, jitter: float, gap: float, seed: int
) -> None:
    simulation = Simulation(offset=offset, drift=drift, down=down, up=up, jitter=jitter, seed=seed)
    for step in range(20):
        found = simulation.request(step * gap)
        assert error(simulation, step * gap, found) <= found.error_ns / SECOND + 1e-4


def test_quick_messages_of_different_calls_bound_the_error_together() -> None:
    simulation = Simulation(offset=5.0, drift=0.0, down=0.001, up=0.001, jitter=0.05, seed=1)
    single = Simulation(offset=5.0, drift=0.0, down=0.001, up=0.001, jitter=0.05, seed=1)
    best = min(afresh(single, step).error_ns for step in range(50))
    found = [simulation.request(step) for step in range(50)][-1]
    assert found.error_ns < best
    assert error(simulation, 50, found) < 0.005


def afresh(simulation: Simulation, now: float) -> Offset:
    simulation.clock = Clock()
    return simulation.request(now)


def test_directions_that_are_unlike_widen_the_error_by_half_the_difference() -> None:
    simulation = Simulation(offset=-2.0, drift=0.0, down=0.2, up=0.0, jitter=0.0, seed=0)
    found = simulation.request(0.0)
    assert found.error_ns / SECOND == pytest.approx(0.1, rel=1e-3)
    assert error(simulation, 0.0, found) == pytest.approx(0.1, rel=1e-3)


def test_the_estimate_follows_a_clock_that_drifts() -> None:
    simulation = Simulation(offset=0.0, drift=4e-5, down=0.001, up=0.001, jitter=0.002, seed=3)
    for step in range(2000):
        found = simulation.request(10.0 * step)
    assert simulation.truth(20_000) == pytest.approx(0.8)
    assert error(simulation, 10.0 * 1999, found) < 0.01


def test_a_clock_that_is_set_is_known_again_after_one_call() -> None:
    simulation = Simulation(offset=0.0, drift=0.0, down=0.001, up=0.001, jitter=0.001, seed=4)
    for step in range(20):
        simulation.request(step)
    for jump in (30.0, -7.0):
        simulation.offset += jump
        found = simulation.request(21.0)
        assert error(simulation, 21.0, found) <= found.error_ns / SECOND < 0.02


def test_one_direction_alone_says_nothing() -> None:
    clock = Clock()
    assert clock.at(START) is None
    clock.heard(START, START + SECOND)
    assert clock.at(START) is None


def test_an_error_grows_while_nothing_is_heard() -> None:
    simulation = Simulation(offset=0.0, drift=0.0, down=0.001, up=0.001, jitter=0.0, seed=5)
    found = simulation.request(0.0)
    later = simulation.clock.at(START + 100 * SECOND)
    assert later is not None
    assert later.error_ns / SECOND == pytest.approx(found.error_ns / SECOND + 0.01, rel=0.01)
