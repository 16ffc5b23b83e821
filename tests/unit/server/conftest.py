"""A member with calls, as a stream or an exchange would see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb

MakeMember: TypeAlias = Callable[..., ClientRecord]


def body(value: float = 1.0) -> Body:
    return Body(encode({"x": value}))


@pytest.fixture
def make_member() -> MakeMember:
    """A member of the fleet, by name."""

    def make(name: str = "client-0", index: int = 0) -> ClientRecord:
        return ClientRecord(name, index, shard=pb.ShardDescription(samples=3, features=2, classes=2, features_held=2))

    return make


@pytest.fixture
def member(make_member: MakeMember) -> ClientRecord:
    return make_member()
