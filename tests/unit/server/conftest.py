"""A member with calls, as a stream or an exchange would see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from common.frames import Body
from common.payload import encode
from proto import fenchel_pb2 as pb
from server.member import Member

MakeMember: TypeAlias = Callable[..., Member]


def body(value: float = 1.0) -> Body:
    return Body(encode({"x": value}))


@pytest.fixture
def make_member() -> MakeMember:
    """A member of the fleet, by name."""

    def make(name: str = "client-0", index: int = 0) -> Member:
        return Member(
            name, index, shard=pb.ShardDescription(samples=3, features=2, classes=2, features_held=2)
        )

    return make


@pytest.fixture
def member(make_member: MakeMember) -> Member:
    return make_member()
