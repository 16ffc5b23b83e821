"""A server that never says which replies it needs no longer cannot fill a client's disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.errors import StorageError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from tests.hostile.test_untrusted_server import SETTINGS, Impostor
from tests.messages import raises

STATEFUL = SETTINGS | {"algorithm": {"name": "feddyn", "local_steps": 1, "batch_size": 8}}
MODEL = Body(encode({"model": np.zeros(640), "mean_samples": 100.0}))
ENTRY = 12 << 10  # of disk: a dual vector and a model of 640 numbers, which is more than 8 KiB, and less than 12


@dataclass
class Hoarder(Impostor):
    """A server that asks on and on, counts every reply, and has the client keep all of them."""

    asks: int = 1000  # questions in all
    patience: int | None = None  # after so many of them it breaks off and calls itself another run
    answered: list[tuple[str, int]] = field(default_factory=list)  # runs and instructions to which it had a reply
    kept: list[list[int]] = field(default_factory=list)  # what the client said on each stream that it keeps

    async def _work(self, incoming: Any, context: Any) -> None:
        hello = parse(await context.read()).head
        assert isinstance(hello, pb.Hello)
        self.kept.append(list(hello.snapshots))
        await context.write(next(frames(pb.Welcome())))
        first = max(hello.snapshots, default=0) + 1
        for sequence in range(first, first + (self.patience or self.asks + 1)):
            if len(self.answered) == self.asks:
                await context.write(next(frames(pb.Farewell(completed=True))))
                return
            asked = pb.Instruction(
                phase="train", round=sequence, kind=pb.ASK, sequence=sequence, base=sequence - 1, low_water_mark=0
            )
            for frame in frames(asked, MODEL):
                await context.write(frame)
            frame = await context.read()
            if frame is grpc.aio.EOF:
                return
            reply = parse(frame).head
            assert isinstance(reply, pb.Reply)
            assert (reply.sequence, reply.failure) == (sequence, "")
            self.answered.append((self.run, sequence))
        self.run += "x"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder, ["localhost"], ["a"])
    return folder


Work = Callable[..., Awaitable[Hoarder]]


@pytest.fixture
def work(certificates: Path, tmp_path: Path) -> Work:
    """Return a function that has a client work for a hoarder; it may end with an error."""

    async def worked(trust_limits: TrustLimits, *, fails: bool = False, **keys: Any) -> Hoarder:
        hoarder = Hoarder(Credentials.load(certificates / "server"), json.dumps(STATEFUL), **keys)
        async with hoarder.listening() as port:
            participant = Participant(
                name="a",
                server=f"localhost:{port}",
                credentials=Credentials.load(certificates / "a"),
                local_data=LocalData(),
                state_folder=tmp_path / "state",
                trust_limits=trust_limits,
                retry_for=20.0,
            )
            with ThreadPoolExecutor(1) as executor:
                async with asyncio.timeout(60):
                    with raises(StorageError) if fails else contextlib.nullcontext():
                        await Connection(participant, executor).take_part()
        return hoarder

    return worked


def on_disk(folder: Path) -> int:
    """What the files of all journals take, in whole blocks."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*.state*"))


@pytest.mark.parametrize("patience", [None, 7], ids=["one run", "run after run"])
async def test_the_client_stops_before_its_journals_take_more_than_they_may(
    patience: int | None, work: Work, tmp_path: Path
) -> None:
    hoarder = await work(TrustLimits(journal_bytes=200_000, any_run=True), patience=patience, fails=True)
    assert len(hoarder.answered) == 200_000 // ENTRY == 16
    assert len({run for run, _ in hoarder.answered}) == (1 if patience is None else 3)
    assert on_disk(tmp_path) == 16 * ENTRY <= 200_000


async def test_with_more_room_the_client_goes_on_where_it_stopped(work: Work) -> None:
    small = TrustLimits(journal_bytes=5 * ENTRY)
    first = await work(small, fails=True)
    assert [sequence for _, sequence in first.answered] == [1, 2, 3, 4, 5]
    again = await work(small, fails=True)
    assert (again.kept, again.answered) == ([[1, 2, 3, 4, 5]], [])
    larger = await work(TrustLimits(journal_bytes=9 * ENTRY), asks=4)
    assert larger.kept == [[1, 2, 3, 4, 5]]
    assert [sequence for _, sequence in larger.answered] == [6, 7, 8, 9]


async def test_the_room_that_nobody_chose_is_far_away(work: Work, tmp_path: Path) -> None:
    hoarder = await work(TrustLimits(), asks=200)
    assert len(hoarder.answered) == 200
    assert on_disk(tmp_path) == 200 * ENTRY


async def test_a_disk_is_not_filled_by_whom_nobody_gave_more(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that this client has for itself: what its journals take is missing from what is free."""
    size = 1_000_000

    class Usage:
        def __init__(self, _: object) -> None:
            self.free = size - on_disk(tmp_path)

    monkeypatch.setattr("fenchel.client.disk_quota.shutil.disk_usage", Usage)
    hoarder = await work(TrustLimits(), fails=True)
    assert len(hoarder.answered) == 900_000 // ENTRY
    assert size - on_disk(tmp_path) >= size / 10
