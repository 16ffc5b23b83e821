"""What a client that is away must still do is kept for it, up to a limit; beyond, the client is lost."""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np
import pytest

from fenchel.common.errors import LostStateError
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import Network
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from tests.messages import raises

MODEL = np.zeros(1000)


def fleet_of(limit: int, policy: Literal["stop", "continue"] = "continue") -> Fleet:
    members = {name: ClientRecord(name) for name in ("a", "b")}
    return Fleet(
        members=members,
        seed=0,
        participation=Participation(on_lost_state=policy),
        network=Network(promised_bytes=limit),
    )


def tell(fleet: Fleet, times: int) -> None:
    async def rounds() -> None:
        for t in range(1, times + 1):
            fleet.round = t
            await fleet.all().tell("train", model=MODEL)
            for call in list(fleet.members["b"].pending_tells()):
                fleet.members["b"].resolve(call)  # b is there, and follows

    asyncio.run(rounds())


def test_a_client_that_is_away_is_given_up_when_too_much_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    fleet = fleet_of(limit=10 * MODEL.nbytes)
    tell(fleet, 9)
    assert fleet.members["a"].lost is None
    assert len(fleet.members["a"].outstanding) == 9
    tell(fleet, 10)
    lost = fleet.members["a"].lost
    assert lost is not None
    for word in ("disconnected", "since round 1", "network.promised_bytes", f"{10 * MODEL.nbytes:,}"):
        assert word in lost
    assert "client a is lost" in caplog.text
    assert not fleet.members["a"].outstanding  # and the memory is free
    assert fleet.members["b"].lost is None


def test_a_single_instruction_may_be_larger_than_the_limit() -> None:
    fleet = fleet_of(limit=1)
    tell(fleet, 1)
    assert fleet.members["a"].lost is None


def test_small_instructions_count_with_what_surrounds_them() -> None:
    fleet = fleet_of(limit=1 << 20)

    async def rounds() -> None:
        for t in range(1, 5000):
            fleet.round = t
            await fleet.all().tell("step")

    asyncio.run(rounds())
    assert fleet.members["a"].lost is not None
    assert fleet.members["b"].lost is not None


def test_a_run_that_cannot_do_without_the_client_stops() -> None:
    fleet = fleet_of(limit=10 * MODEL.nbytes, policy="stop")
    tell(fleet, 20)
    with raises(LostStateError, client="a"):
        fleet.check_lost()
