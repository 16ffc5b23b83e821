"""A client that is late: its local steps of one round take until it is let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pytest

from fenchel.common.arrays import Indices


class Batched(Protocol):
    """A client half that draws batches before its local steps."""

    client: str
    round: int

    def batches(self) -> Iterator[Indices]: ...


def held_up(patch: pytest.MonkeyPatch, half: type[Batched], client: str, t: int) -> threading.Event:
    """Return what lets a client go on with its local steps of a round."""
    release, drawn = threading.Event(), half.batches

    def waiting(self: Batched) -> Iterator[Indices]:
        if (self.client, self.round) == (client, t):
            release.wait()
        return drawn(self)

    patch.setattr(half, "batches", waiting)
    return release


@contextmanager
def late(patch: pytest.MonkeyPatch, half: type[Batched], client: str, t: int) -> Iterator[dict[str, Any]]:
    """Make a client miss the deadline of a round; yield what :func:`tests.algorithms.mlr.train` needs for it."""
    release = held_up(patch, half, client, t)
    with ThreadPoolExecutor(4) as executor:
        yield {
            "executor": executor,
            "on_round": lambda done: release.set() if done == t else None,
            "participation": {"deadline": 1.0},
        }


def missed(calls: pa.Table) -> set[tuple[int, str]]:
    """Return rounds and clients of the calls that did not count."""
    return {(call["round"], call["client"]) for call in calls.to_pylist() if call["outcome"] != "counted"}
