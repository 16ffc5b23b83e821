"""What a client sends, or does not read, takes no memory of the server, which is a process of its own here.

The honest clients say what the test has them say, and when: so the run lasts as long as the attack, and its
model is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.frames import CHUNK_BYTES, Body, frames
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector
from fenchel.proto import fenchel_pb2 as pb
from tests.cluster.federation import Federation, wait_until
from tests.hostile.memory import peak, resident
from tests.hostile.relay import relaying
from tests.hostile.test_siege import HONEST, OFFENDER, Call, Offender, declared, dense, described, thin

pytestmark = pytest.mark.cluster

MEMORY = 128 << 20
SMALL, LARGE = 640, 2 << 20  # numbers of a model: 5 KB, 16 MiB


@dataclass
class Siege:
    """A server that listens, and three clients that are played here."""

    federation: Federation
    features: int
    server: int = 0
    """The server's process."""
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the honest ones answer yet."""
    asked: int = 0
    """How many questions the first of the honest ones has had."""

    def client(self, name: str, port: int | None = None) -> Offender:
        credentials = Credentials.load(self.federation.folder / "certs" / name)
        shard = described(features=self.features, features_held=self.features, classes=2)
        return Offender(port or self.federation.port, credentials, name, shard, own_data=True)

    async def honest(self, name: str, number: float) -> None:
        """Answer each question by a model of one number."""
        client = self.client(name)
        values = encode({"model": np.full(self.features, number), "samples": 40})
        async with client.channel() as channel:
            await client.join(channel)
            call = await client.introduced(channel)
            while True:
                asked = await client.asked(call)
                self.asked += name == HONEST[0]
                await self.answering.wait()
                await send(call, pb.Reply(sequence=asked.sequence), values)

    def growth(self, since: int) -> int:
        return peak(self.server) - since


async def send(call: Call, reply: pb.Reply, values: Any = None) -> None:
    for frame in frames(reply, Body(values or encode({}))):
        await call.write(frame)


Attack = Callable[[Siege, Offender, grpc.aio.Channel], Awaitable[None]]


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[Callable[..., Federation]]:
    found: list[Federation] = []

    def make(rounds: int, **participation: Any) -> Federation:
        settings = {
            "name": "memory",
            "rounds": rounds,
            "clients": 3,
            "data": {"name": "own"},
            "objective": {"kind": "logistic", "l2": 1e-3},
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None},
            "participation": {"min_replies": 2} | participation,
            "evaluation": {"server": False, "clients": False},
        }
        found.append(Federation(tmp_path, settings))
        return found[0]

    yield make
    for each in found:
        each.end()


async def besieged(federation: Federation, features: int, attack: Attack, port: int | None = None) -> None:
    """Have a run attacked, from the time on at which all have joined; then it ends with the model of the others."""
    federation.start_server()
    wait_until(lambda: "listening" in federation.says("server"), "the server")
    assert federation.server is not None
    siege = Siege(federation, features, federation.server.pid)
    playing = [asyncio.create_task(siege.honest(name, value)) for name, value in zip(HONEST, (1.0, 2.0), strict=True)]
    offender = siege.client(OFFENDER, port)
    try:
        async with asyncio.timeout(120), offender.channel() as channel:
            await offender.join(channel)
            await attack(siege, offender, channel)
            siege.answering.set()
            assert await asyncio.to_thread(federation.server.wait) == 0, federation.says("server")
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    with np.load(federation.run_folder / "model.npz") as archive:
        np.testing.assert_array_equal(archive["model"], np.full(features, 1.5))


async def test_what_is_larger_than_what_was_asked_for_is_dropped_as_it_comes(
    federate: Callable[..., Federation],
) -> None:
    async def gigabytes(siege: Siege, offender: Offender, channel: grpc.aio.Channel) -> None:
        call = await offender.introduced(channel)
        asked = await offender.asked(call)
        before = resident(siege.server)
        await call.write(declared(dense(1 << 28), asked.sequence))
        chunk = pb.Frame(chunk=bytes(CHUNK_BYTES)).SerializeToString()
        for _ in range(600):  # each is taken off the wire, or the next would wait
            await call.write(chunk)
        assert siege.growth(before) < MEMORY

    federation = federate(rounds=1, deadline=100.0)
    await besieged(federation, SMALL, gigabytes)
    assert "above the maximum of 5,120 of the request" in federation.says("server")


async def test_few_bytes_that_stand_for_a_gigabyte_stay_few(federate: Callable[..., Federation]) -> None:
    length = 1 << 27
    encodings = (pb.DELTA_VARINT, pb.INDEX_LIST, pb.SEEDED, pb.EVERY_ENTRY)
    vector = encode({"model": SparseVector(np.array([length - 1]), np.ones(1), length), "samples": 40})

    async def bombs(siege: Siege, offender: Offender, channel: grpc.aio.Channel) -> None:
        siege.answering.set()
        call = await offender.introduced(channel)
        before = resident(siege.server)
        await send(call, pb.Reply(sequence=(await offender.asked(call)).sequence), vector)
        for encoding in encodings:
            asked = await offender.asked(call)
            await call.write(thin(length, encoding, asked.sequence))
        with pytest.raises(grpc.aio.AioRpcError, match="do not fit a vector"):  # the last is no reply at all
            await offender.asked(call)
        call = await offender.introduced(channel)
        asked = await offender.asked(call)
        assert siege.growth(before) < MEMORY
        await send(call, pb.Reply(sequence=asked.sequence, failure="enough"))

    federation = federate(rounds=len(encodings) + 1, deadline=100.0)
    await besieged(federation, SMALL, bombs)
    told = federation.says("server")
    assert "is a sparse vector" in told
    assert told.count("got values named") == len(encodings) - 1


@pytest.mark.slow  # make test-all
async def test_what_a_client_never_reads_is_not_kept_for_it(federate: Callable[..., Federation]) -> None:
    """Each round has 16 MiB for it, of which 4 MiB may be sent ahead."""
    rounds = 12

    async def never_reading(siege: Siege, offender: Offender, channel: grpc.aio.Channel) -> None:
        siege.answering.set()
        await offender.introduced(channel)
        while siege.asked < 3:
            await asyncio.sleep(0.01)
        before = peak(siege.server)
        while siege.asked < rounds:
            await asyncio.sleep(0.01)
        assert siege.growth(before) < MEMORY

    federation = federate(rounds=rounds, deadline=3.0, patience=1)
    async with relaying(federation.port) as relay:
        await besieged(federation, LARGE, never_reading, relay.port)
    assert f"client {OFFENDER} did not answer" in federation.says("server")
    assert 1 << 20 < sum(map(len, relay.down)) < 8 * LARGE, "flow control has held, in the middle of the first model"
