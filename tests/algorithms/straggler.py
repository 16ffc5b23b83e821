"""A client that is late: its local steps of one round take until it is let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pytest

from fenchel.common.arrays import Indices


class Batched(Protocol):
    """A client half that draws batches before its local steps."""

    client: str
    round: int

    def batches(self) -> Iterator[Indices]: ...


def held_up(
    patch: pytest.MonkeyPatch, half: type[Batched], client: str, t: int, seconds: float | None = None
) -> threading.Event:
    """Return what lets a client go on with its local steps of a round; it goes on by itself after some seconds."""
    release, drawn = threading.Event(), half.batches

    def waiting(self: Batched) -> Iterator[Indices]:
        if (self.client, self.round) == (client, t):
            release.wait(seconds)
        return drawn(self)

    patch.setattr(half, "batches", waiting)
    return release


def missed(calls: pa.Table) -> set[tuple[int, str]]:
    """Return rounds and clients of the calls that did not count."""
    return {(call["round"], call["client"]) for call in calls.to_pylist() if call["outcome"] != "counted"}
