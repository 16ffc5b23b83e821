"""A member with calls, as a stream or an exchange would see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.collectors import GatherCollector
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from tests.reservations import roomy

MakeMember: TypeAlias = Callable[..., ClientRecord]


def body(value: float = 1.0) -> Body:
    return Body(encode({"x": value}))


def request_of(**how: Any) -> Request:
    """Return a request that any reply answers."""
    plain: dict[str, Any] = {
        "phase": "train",
        "t": 1,
        "collector": GatherCollector(),
        "check": lambda *_: None,
        "deadline": 60.0,
        "reservation": roomy(),
    }
    return Request(**plain | how)


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def make_member() -> MakeMember:
    """A member of the fleet, by name."""

    def make(name: str = "client-0") -> ClientRecord:
        return ClientRecord(name, shard=pb.ShardDescription(samples=3, features=2, classes=2, features_held=2))

    return make


@pytest.fixture
def member(make_member: MakeMember) -> ClientRecord:
    return make_member()
