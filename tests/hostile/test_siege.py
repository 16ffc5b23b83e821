"""Clients of the fleet attack a real server over TLS: the run of the others ends with the right bits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fenchel.client.client_process import host
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.channel import CLIENT_KEY, INSTANCE_KEY, options
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.reader import SMALLEST_PIECE
from fenchel.common.wire.values import SparseVector, Values
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.metering.limits import Limits
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport.service import serve
from fenchel.testing import load_model
from tests.hostile.memory import growth
from tests.slow import rest_slow

OFFENDER = "client-002"
HONEST = ("client-000", "client-001")
INSTANCE = b"o" * 16
MEMORY = 256 << 20
"""What may be taken more during an attack by the server, the honest clients and the offender, which are one process.

The server alone is measured in test_memory.py.
"""

SETTINGS: dict[str, Any] = {
    "name": "siege",
    "seed": 7,
    "rounds": 1,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
    "objective": {"kind": "softmax", "l2": 1e-3},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 0.5},
    "participation": {"deadline": 5.0},
    "evaluation": {"server": False, "clients": False},
}

# So low that whoever calls without end is beyond them, however slow the machine is.
LIMITS = Limits(probes_per_second=2, calls_per_second=5, calls_at_once=20)

Call: TypeAlias = Any
"""A Work call of gRPC, as bytes."""


def described(**changes: Any) -> pb.ShardDescription:
    return pb.ShardDescription(**({"samples": 40, "features": 64, "classes": 10, "features_held": 64} | changes))


@dataclass
class Offender:
    """A client with a certificate and a place in the fleet, and nothing good in mind."""

    port: int
    credentials: Credentials
    name: str = OFFENDER
    shard: pb.ShardDescription = field(default_factory=described)
    own_data: bool = False
    refused: list[grpc.StatusCode] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        address, credentials = f"localhost:{self.port}", self.credentials.for_channel()
        async with grpc.aio.secure_channel(address, credentials, options=options(20.0)) as channel:
            yield channel

    def request(self, name: str = "") -> pb.JoinRequest:
        return pb.JoinRequest(
            protocol=PROTOCOL, client=name or self.name, instance=INSTANCE, software="siege", own_data=self.own_data
        )

    async def join(self, channel: grpc.aio.Channel) -> None:
        while not (await CoordinatorStub(channel).Join(self.request())).HasField("assignment"):
            pass

    def work(self, channel: grpc.aio.Channel, name: str = "") -> Call:
        metadata = ((CLIENT_KEY, (name or self.name).encode()), (INSTANCE_KEY, INSTANCE))
        return channel.stream_stream("/fenchel.v1.Coordinator/Work")(metadata=metadata)

    async def introduced(self, channel: grpc.aio.Channel) -> Call:
        """Return a stream on which this client has said what it holds."""
        call = self.work(channel)
        for frame in frames(pb.Hello(shard=self.shard, stateless=True)):
            await call.write(frame)
        return call

    async def asked(self, call: Call) -> pb.Instruction:
        """Wait for a question."""
        while True:
            data = await call.read()
            head = parse(data).head if isinstance(data, bytes) else pb.Farewell()
            if isinstance(head, pb.Instruction):
                return head
            if isinstance(head, pb.Farewell):
                await asyncio.sleep(3600)

    async def tried(self, begin: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Begin a call that is likely to be refused, and await it."""
        try:
            await begin(*arguments)
        except grpc.aio.AioRpcError as error:
            self.refused.append(error.code())


Attack: TypeAlias = Callable[[Offender, grpc.aio.Channel], Awaitable[None]]


def declared(payload: pb.Payload, sequence: int) -> bytes:
    return pb.Frame(reply=pb.Reply(sequence=sequence, payload=payload)).SerializeToString()


def dense(entries: int) -> pb.Payload:
    array = pb.Array(name="model", dense=pb.Dense(dtype=pb.FLOAT64, shape=[entries]))
    return pb.Payload(body_bytes=8 * entries, arrays=[array])


def answering(answer: Callable[[int], Iterable[bytes]]) -> Attack:
    """Answer the first question by these frames, by its number, and then keep silent."""

    async def attack(offender: Offender, channel: grpc.aio.Channel) -> None:
        call = await offender.introduced(channel)
        asked = await offender.asked(call)
        for frame in answer(asked.sequence):
            await call.write(frame)
        await asyncio.sleep(3600)

    return attack


def saying(values: Values) -> Attack:
    return answering(lambda sequence: frames(pb.Reply(sequence=sequence), Body(encode(values))))


def thin(size: int, encoding: pb.SupportEncoding.ValueType, sequence: int) -> bytes:
    """Return a reply of a few bytes that stand for a long vector."""
    lengths = {pb.DELTA_VARINT: 1, pb.INDEX_LIST: -(-(size - 1).bit_length() // 8)}
    vector = pb.Sparse(dtype=pb.FLOAT64, size=size, count=1, index_bytes=lengths.get(encoding, 0), encoding=encoding)
    indices = 8 if encoding in lengths else 0
    payload = pb.Payload(body_bytes=indices + 8, arrays=[pb.Array(name="model", sparse=vector)])
    frame = pb.Frame(reply=pb.Reply(sequence=sequence, payload=payload), chunk=bytes(indices + 8))
    return frame.SerializeToString()


def sparse(size: int, encoding: pb.SupportEncoding.ValueType) -> Attack:
    return answering(lambda sequence: [thin(size, encoding, sequence)])


failure = answering(lambda sequence: frames(pb.Reply(sequence=sequence, failure="no idea"), Body(encode({}))))
silence = answering(lambda sequence: [])


async def drops(offender: Offender, channel: grpc.aio.Channel) -> None:
    call = await offender.introduced(channel)
    asked = await offender.asked(call)
    await call.write(declared(encode({"model": np.zeros(640), "samples": 40}).descriptor, asked.sequence))
    while True:
        await call.write(pb.Frame().SerializeToString())


async def unsolicited_replies(offender: Offender, channel: grpc.aio.Channel) -> None:
    call = await offender.introduced(channel)
    await offender.asked(call)
    sequence = 1 << 33  # of another run, or of this one as it was resumed
    while True:
        sequence += 1
        for frame in frames(pb.Reply(sequence=sequence), Body(encode({"model": np.zeros(640)}))):
            await call.write(frame)


async def many_values(offender: Offender, channel: grpc.aio.Channel) -> None:
    values = [pb.Array(name=str(number), scalar=pb.Scalar(real=0)) for number in range(10_000)]
    frame = declared(pb.Payload(arrays=values), 1 << 33)
    while True:
        call = await offender.introduced(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await offender.asked(call)
            await call.write(frame)
            await call.read()
        call.cancel()


async def bodies(offender: Offender, channel: grpc.aio.Channel) -> None:
    call = await offender.introduced(channel)
    await offender.asked(call)
    piece = pb.Frame(chunk=bytes(SMALLEST_PIECE)).SerializeToString()
    await call.write(declared(dense(1 << 29), 1 << 33))  # 4 GiB that nobody waits for, in small pieces
    while True:
        await call.write(piece)


async def cancelled(offender: Offender, channel: grpc.aio.Channel) -> None:
    """Streams that are opened and reset at once, without end."""
    await offender.introduced(channel)
    while True:
        calls = [offender.work(channel) for _ in range(10)]
        await asyncio.sleep(0.01)  # a thousand in a second; the honest clients are in the same process
        for call in calls:
            call.cancel()
        await asyncio.gather(*(offender.tried(_ended, call) for call in calls), return_exceptions=True)


async def a_thousand_streams(offender: Offender, channel: grpc.aio.Channel) -> None:
    await offender.introduced(channel)
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(offender.channel()) for _ in range(25)]
        calls = [offender.work(each) for each in channels for _ in range(40)]
        await asyncio.gather(*(offender.tried(call.read) for call in calls))
        await asyncio.gather(*(offender.tried(_ended, call) for call in calls))
        await asyncio.sleep(3600)


async def _ended(call: Call) -> None:
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def health_check(channel: grpc.aio.Channel) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest())


def calling(what: Callable[[grpc.aio.Channel, Offender], Any], parallel: int) -> Attack:
    """A call made as often as can be, on several connections."""

    async def attack(offender: Offender, channel: grpc.aio.Channel) -> None:
        await offender.introduced(channel)
        async with contextlib.AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(offender.channel()) for _ in range(4)]

            async def flood(each: grpc.aio.Channel) -> None:
                while True:
                    await offender.tried(what, each, offender)

            await asyncio.gather(*(flood(each) for each in channels for _ in range(parallel)))

    return attack


async def another_id(offender: Offender, channel: grpc.aio.Channel) -> None:
    await offender.introduced(channel)
    for name in (*HONEST, "client-099"):
        await offender.tried(CoordinatorStub(channel).Join, offender.request(name))
        await offender.tried(_ended, offender.work(channel, name))
    assert offender.refused == [grpc.StatusCode.PERMISSION_DENIED] * 6
    await asyncio.sleep(3600)


async def half_open(offender: Offender, channel: grpc.aio.Channel) -> None:
    await offender.introduced(channel)
    sockets = []
    for number in range(200):
        connection = socket.create_connection(("127.0.0.1", offender.port))
        if number % 2:
            connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of a TLS hello
        sockets.append(connection)
    try:
        await asyncio.sleep(3600)
    finally:
        for connection in sockets:
            connection.close()


async def said_hello(offender: Offender, channel: grpc.aio.Channel, hello: pb.Hello) -> Call:
    call = offender.work(channel)
    for frame in frames(hello):
        await call.write(frame)
    return call


async def names_of_megabytes(offender: Offender, channel: grpc.aio.Channel) -> None:
    await offender.asked(await offender.introduced(channel))
    hello = pb.Hello(shard=described(class_names=["A" * 1_000_000]), stateless=True)
    while True:
        call = await said_hello(offender, channel, hello)
        await offender.tried(call.read)
        call.cancel()


async def environments_of_megabytes(offender: Offender, channel: grpc.aio.Channel) -> None:
    """Report another computing environment on every stream, with a line of a log in it."""
    for number in itertools.count():
        text = f"{number}\x1b[2J\nINFO round 1: all is well" + "x" * 100_000
        environment = pb.Environment(kernel=text, blas=text, numpy=text, threads=number)
        call = await said_hello(offender, channel, pb.Hello(shard=described(), stateless=True, environment=environment))
        await offender.asked(call)
        call.cancel()


async def two_errors_in_turn(offender: Offender, channel: grpc.aio.Channel) -> None:
    await offender.asked(await offender.introduced(channel))
    broken = (bytes([0x0A, 0x7F]), pb.Frame(chunk=b"x").SerializeToString())
    for number in itertools.count():
        call = offender.work(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(broken[number % 2])
            await call.read()
        call.cancel()


async def a_state_that_never_was(offender: Offender, channel: grpc.aio.Channel) -> None:
    """FedAvg's clients keep nothing: nothing can be lost, whatever this one says."""
    call = await offender.introduced(channel)
    await offender.asked(call)
    call.cancel()
    again = await said_hello(offender, channel, pb.Hello(shard=described(), stateless=False))
    await offender.asked(again)  # it is welcome, and asked once more
    await asyncio.sleep(3600)


async def another_shape_first(offender: Offender, channel: grpc.aio.Channel) -> None:
    """What the first client says of a named data set is no measure for the others."""
    hello = pb.Hello(shard=described(features=65), stateless=True)
    head = parse(await (await said_hello(offender, channel, hello)).read()).head
    assert isinstance(head, pb.Farewell)
    assert "has 65 features, but the server's copy of the data set has 64" in head.reason
    await silence(offender, channel)


QUIET: dict[str, tuple[Attack, str]] = {
    "not a number": (saying({"model": np.full(640, np.nan), "samples": 40}), "not finite"),
    "a long sparse vector": (
        saying({"model": SparseVector(np.array([2**40 - 1]), np.ones(1), 2**40), "samples": 40}),
        "is a sparse vector",
    ),
    "a bomb of differences": (sparse(2**40, pb.DELTA_VARINT), "got values named"),
    "a bomb of a list": (sparse(2**40, pb.INDEX_LIST), "got values named"),
    "a bomb of a seed": (sparse(2**40, pb.SEEDED), "index sets from seeds"),
    "a bomb of all entries": (sparse(2**40, pb.EVERY_ENTRY), "do not fit a vector"),
    "a value's name of a megabyte": (saying({"A" * 900_000: 1.0}), "got values named"),
    "a state that never was": (a_state_that_never_was, "did not answer"),
    "another shape of the data": (another_shape_first, "is refused: "),
    "the ids of others": (another_id, "did not answer"),
    "connections that say nothing": (half_open, "did not answer"),
}
"""What some do once, and what the server's log says of it."""

FLOODS: dict[str, tuple[Attack, str]] = {
    "drops": (drops, "in the middle of a message"),
    "replies of another run": (unsolicited_replies, "many unsolicited replies"),
    "ten thousand values that nobody asked for": (many_values, "an unsolicited reply has 10,000 values"),
    "bodies of other runs": (bodies, "many unsolicited replies"),
    "streams that are cancelled at once": (cancelled, "makes more calls than its rate limit allows"),
    "health checks": (
        calling(lambda channel, offender: health_check(channel), 15),
        "makes more calls than its rate limit allows",
    ),
    "names of classes of a megabyte": (names_of_megabytes, "class names"),
    "environments of megabytes": (environments_of_megabytes, "computes with kernel"),
    "two errors in turn": (two_errors_in_turn, "did not begin the stream with a hello"),
    "a thousand streams": (a_thousand_streams, "open calls, and further ones are rejected"),
    "joins": (
        calling(lambda channel, offender: CoordinatorStub(channel).Join(offender.request()), 15),
        "open calls, and further ones are rejected",
    ),
    "probes": (
        calling(lambda channel, offender: CoordinatorStub(channel).Probe(pb.ProbeRequest(reply_bytes=1 << 20)), 15),
        "makes more probes than its rate limit allows",
    ),
}
"""What some do without end."""

GROUPS = [list(QUIET), *(list(FLOODS)[start::4] for start in range(4))]
"""Attacks that one run has at the same time."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder, ["localhost"], client_names(len(HONEST) + len(QUIET)))
    return folder


def attacked(attacks: Sequence[Attack], folder: Path, certificates: Path) -> bytes:
    """Return the model of a run that is attacked by as many clients."""
    run = RunFolder.create(folder, "siege")
    settings = validate(SETTINGS | {"clients": len(HONEST) + len(attacks)})
    asyncio.run(_life(settings, run, attacks, certificates))
    return load_model(run).tobytes()


async def _life(settings: RunSettings, run: RunFolder, attacks: Sequence[Attack], certificates: Path) -> None:
    run.settings.write_text(settings.to_yaml())
    coordinator = Coordinator(settings, run, limits=LIMITS)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    names = client_names(len(HONEST) + len(attacks))
    credentials = {name: Credentials.load(certificates / name) for name in ("server", *names)}
    serving = asyncio.create_task(serve(coordinator, "127.0.0.1:0", credentials["server"], listening.set_result))
    port = await listening
    local_data = LocalData()
    honest = [
        Participant(name=name, server=f"localhost:{port}", credentials=credentials[name], local_data=local_data)
        for name in HONEST
    ]
    working = asyncio.create_task(host(honest, on_event=lambda words: None))
    offending = [
        asyncio.create_task(_offend(Offender(port, credentials[name], name), attack))
        for name, attack in zip(names[len(HONEST) :], attacks, strict=True)
    ]
    try:
        async with asyncio.timeout(90):
            farewells = await working
            assert all(farewell.completed for farewell in farewells)
            assert (await serving).completed
        for offence in offending:
            if offence.done():
                offence.result()
    finally:
        for task in (*offending, working, serving):
            task.cancel()
        await asyncio.gather(*offending, working, serving, return_exceptions=True)


async def _offend(offender: Offender, attack: Attack) -> None:
    async with offender.channel() as channel:
        await offender.join(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await attack(offender, channel)


@pytest.mark.parametrize("group", rest_slow(GROUPS), ids=lambda group: group[0])
def test_the_run_of_the_others_ends_with_the_right_bits(
    group: list[str], certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacks = [(QUIET | FLOODS)[name] for name in group]
    with caplog.at_level(logging.WARNING, logger="fenchel.server"), growth() as memory:
        model = attacked([attack for attack, _ in attacks], tmp_path, certificates)
    assert memory.most < MEMORY, f"{memory.start:,} bytes at the start, {memory.most:,} more at most"
    said = [record.getMessage() for record in caplog.records if record.name == "fenchel.server"]
    offenders = client_names(len(HONEST) + len(group))[len(HONEST) :]
    for offender, (_, told) in zip(offenders, attacks, strict=True):
        lines = [line for line in said if offender in line]
        assert [line for line in lines if told in line], (told, lines)
        assert len(lines) < 30, "an attack does not fill the log"
        assert sum(map(len, lines)) < 20_000
    # The same clients hold the same data where the others fail at once.
    failing = [failure] * len(group)
    assert model == attacked(failing, tmp_path, certificates)
