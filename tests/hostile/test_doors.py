"""Strangers and clients at the server's door: what does not become a call, never ends, or has no right to be one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.common.tls.revocation import REVOKED
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.channel import CLIENT_KEY
from fenchel.common.wire.frames import FRAME_BYTES
from fenchel.deploy.certificates.description import describe
from fenchel.deploy.certificates.making import make_all, make_monitor, renew
from fenchel.deploy.certificates.revocation import revoke
from fenchel.deploy.monitoring.health import main as check_health
from fenchel.fleet.metering import rate_limit
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport import revocation_check
from fenchel.server.transport.service import listening
from tests.conftest import MakeSettings

Stream: TypeAlias = Any
HealthStub: Any = health_pb2_grpc.HealthStub  # their type stubs know no methods
ServerReflectionStub: Any = reflection_pb2_grpc.ServerReflectionStub
ASKED = reflection_pb2.ServerReflectionRequest(list_services="")
CHECK = health_pb2.HealthCheckRequest()
NAME = "fenchel.v1.Coordinator"
MOST = 4
"""Calls of one client that the server holds; as many refusals may wait besides in these tests."""
CONNECTIONS = 60
TIMEOUT = 2.0
GRPC_TIMEOUT = 120.0
"""How long gRPC itself listens to a handshake unless it is told otherwise."""

ENDLESS = {
    "Join": (f"/{NAME}/Join", False),
    "Probe": (f"/{NAME}/Probe", False),
    "Check": ("/grpc.health.v1.Health/Check", False),
    "Watch": ("/grpc.health.v1.Health/Watch", True),
}


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_all(tmp_path / "certs", ["localhost"], ["north", "south"])
    return tmp_path / "certs"


@dataclass
class Door:
    """A server that listens, and its clients' certificates."""

    port: int
    certificates: Path
    coordinator: Coordinator

    @contextlib.asynccontextmanager
    async def channel(self, name: str) -> AsyncIterator[grpc.aio.Channel]:
        credentials = Credentials.load(self.certificates / name).for_channel()
        own = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.secure_channel(f"localhost:{self.port}", credentials, own) as channel:
            yield channel

    async def answers(self, name: str) -> None:
        """Check that a client's calls of each kind are answered."""
        async with asyncio.timeout(60), self.channel(name) as channel:
            reply = await CoordinatorStub(channel).Join(joining(name))
            assert reply.joined > 0
            await CoordinatorStub(channel).Probe(pb.ProbeRequest())
            await HealthStub(channel).Check(CHECK)

    async def is_well(self, name: str) -> bool:
        """Return whether a container's check with such a certificate says so."""
        words = [f"localhost:{self.port}", "--certs", str(self.certificates / name)]
        return await asyncio.to_thread(check_health, words) == 0


OpenDoor: TypeAlias = Callable[..., Awaitable[Door]]


def joining(name: str, protocol: int = PROTOCOL) -> pb.JoinRequest:
    return pb.JoinRequest(protocol=protocol, client=name, instance=b"i" * 16)


@pytest.fixture
async def door(
    make_settings: MakeSettings, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OpenDoor]:
    """Open a server with some limits."""
    monkeypatch.setattr(rate_limit, "_REFUSALS_PER_SECOND", 1000.0)
    monkeypatch.setattr(revocation_check, "_LOOK_SECONDS", 0.05)
    limits: dict[str, Any] = {
        "max_calls": 40,
        "max_calls_per_client": MOST,
        "max_refusals_per_client": MOST,
        "calls_per_second": 1e6,
    }
    async with contextlib.AsyncExitStack() as stack:

        async def open_door(**changes: Any) -> Door:
            coordinator = Coordinator(
                make_settings(clients=1), RunFolder.create(tmp_path, "door"), limits=Limits(**(limits | changes))
            )
            credentials = Credentials.load(certificates / "server")
            port = await stack.enter_async_context(listening(coordinator, "127.0.0.1:0", credentials, 20.0))
            return Door(port, certificates, coordinator)

        yield open_door


def shut_out(certificates: Path, name: str) -> None:
    """Revoke a client's certificate, and hand the list to the server."""
    revoke(certificates / "authority", names=[name])
    shutil.copy(certificates / "authority" / REVOKED, certificates / "server")


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(20):
            await call
    return caught.value.code(), caught.value.details() or ""


async def watching(channel: grpc.aio.Channel) -> Stream:
    call: Stream = HealthStub(channel).Watch(CHECK)
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
    return call


async def reflecting(channel: grpc.aio.Channel) -> Stream:
    call: Stream = ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(ASKED)
    assert len((await call.read()).list_services_response.service) == 3
    return call


# Rights


async def test_a_revoked_client_is_refused_by_every_service_and_its_streams_are_ended(
    door: OpenDoor, certificates: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    here = await door()

    async def check_revoked(call: Any) -> None:
        code, words = await refused(call)
        assert (code, "was revoked" in words) == (grpc.StatusCode.PERMISSION_DENIED, True), words

    async with here.channel("north") as own:
        open_calls: Sequence[Stream] = (await watching(own), await reflecting(own))
        await HealthStub(own).Check(CHECK)
        assert await here.is_well("north")
        with caplog.at_level(logging.WARNING, logger="fenchel.server"):
            shut_out(certificates, "north")
            for call in open_calls:
                await check_revoked(call.read())
            await check_revoked(HealthStub(own).Check(CHECK))
            await check_revoked(HealthStub(own).Watch(CHECK).read())
            await check_revoked(ServerReflectionStub(own).ServerReflectionInfo().read())
            await check_revoked(CoordinatorStub(own).Probe(pb.ProbeRequest()))
    assert any("'north'" in record.getMessage() for record in caplog.records)
    assert not await here.is_well("north")
    assert "PERMISSION_DENIED: the certificate of 'north'" in capsys.readouterr().err
    assert await here.is_well("south"), "others are as they were"


async def test_a_monitor_asks_how_the_server_is_takes_no_part_and_uses_up_nothing_of_the_client_of_its_name(
    door: OpenDoor, certificates: Path
) -> None:
    make_monitor(certificates / "authority", certificates / "watch", "north")
    here = await door(calls_per_second=1e-6, calls_at_once=4)
    assert await here.is_well("watch")
    async with here.channel("watch") as own:
        join = CoordinatorStub(own).Join(joining("north"))
        work: Stream = own.stream_stream(f"/{NAME}/Work")(metadata=((CLIENT_KEY, b"north"),))
        for call in (join, work.read()):
            code, words = await refused(call)
            assert (code, "a monitor's" in words) == (grpc.StatusCode.PERMISSION_DENIED, True), words
    await here.answers("north")


async def test_questions_on_one_stream_are_answered_at_the_rate_of_calls(door: OpenDoor) -> None:
    here = await door(calls_per_second=10.0, calls_at_once=40)
    async with here.channel("north") as own:
        call = ServerReflectionStub(own).ServerReflectionInfo()

        async def ask() -> None:
            while True:
                await call.write(ASKED)

        asking = asyncio.create_task(ask())
        started = time.monotonic()
        for _ in range(50):
            await call.read()
        assert time.monotonic() - started > 0.9, "40 at once, then 10 in a second"
        asking.cancel()
        call.cancel()


async def test_what_crosses_beside_the_run_is_in_the_account_as_it_crossed(door: OpenDoor) -> None:
    """Held against the messages themselves, as this client wrote and read them."""
    here = await door()
    wire: dict[str, list[Any]] = {}

    def crossed(*messages: Any) -> None:
        for message in messages:
            wire.setdefault(message.DESCRIPTOR.name, []).append(message)

    async with here.channel("north") as own:
        for probe in (pb.ProbeRequest(), pb.ProbeRequest(payload=b"x" * 100), pb.ProbeRequest(reply_bytes=9)):
            crossed(probe, await CoordinatorStub(own).Probe(probe))
        for check in (CHECK, health_pb2.HealthCheckRequest(service=NAME)):
            crossed(check, await HealthStub(own).Check(check))
        watch = HealthStub(own).Watch(CHECK)
        crossed(CHECK, await watch.read())
        watch.cancel()
        call = ServerReflectionStub(own).ServerReflectionInfo()
        file = reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME)
        for question in (ASKED, file):
            await call.write(question)
            crossed(question, await call.read())
        call.cancel()
    here.coordinator.disclosures.save()
    account = json.loads(here.coordinator.folder.disclosures.read_text())
    assert account["messages"] == []
    assert account["clients"] == [], "nobody took part"
    heads = {each["message"]: each for each in account["heads"]}
    assert heads.keys() == wire.keys()
    assert {name: each["times"] for name, each in heads.items()} == {
        name: len(messages) for name, messages in wire.items()
    }
    for name, messages in wire.items():
        assert heads[name]["direction"] == ("up" if name.endswith("Request") else "down")
        top = {field.name for message in messages for field, _ in message.ListFields()}
        assert {field.partition(".")[0] for field in heads[name]["fields"]} == top
    times = {"payload", "received_unix_ns", "sent_unix_ns"}
    assert set(heads["ProbeReply"]["fields"]) == times
    assert set(heads["HealthCheckResponse"]["fields"]) == {"status"}


async def test_the_service_describes_itself_to_standard_tools(door: OpenDoor) -> None:
    here = await door()
    credentials = Credentials.load(here.certificates / "north").for_channel()

    def reflected() -> tuple[list[str], list[str]]:
        with grpc.secure_channel(f"localhost:{here.port}", credentials) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found = DescriptorPool(database).FindServiceByName(NAME)
            return list(database.get_services()), [method.name for method in found.methods]

    services, methods = await asyncio.to_thread(reflected)
    assert {NAME, "grpc.health.v1.Health"} <= set(services)
    assert methods == ["Join", "Work", "Probe"]


async def test_a_probe_that_brings_or_asks_for_too_much_is_refused_and_an_honest_one_answered(door: OpenDoor) -> None:
    here = await door()
    async with here.channel("north") as channel:
        probe = CoordinatorStub(channel).Probe
        reply: pb.ProbeReply = await probe(pb.ProbeRequest(payload=b"x" * 1000, reply_bytes=5))
        assert len(reply.payload) == 5
        assert 0 < reply.received_unix_ns <= reply.sent_unix_ns
        code, _ = await refused(probe(pb.ProbeRequest(reply_bytes=FRAME_BYTES + 1)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        code, _ = await refused(probe(pb.ProbeRequest(payload=bytes(FRAME_BYTES + 2048))))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


# Connections


def tls_of(certificates: Path) -> ssl.SSLContext:
    """Return what a client of the federation begins its handshake with."""
    context = ssl.create_default_context(cafile=str(certificates / "north" / AUTHORITY))
    context.load_cert_chain(certificates / "north" / CERTIFICATE, certificates / "north" / KEY)
    context.set_alpn_protocols(["h2"])
    return context


def hello(certificates: Path) -> bytes:
    """Return how such a handshake begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls_of(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def open_for(port: int, words: bytes, pause: float) -> float:
    """Say some words, a byte at a time if there are pauses, then nothing; return how long one is listened to."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def talk() -> None:
        for piece in (words[n : n + 1] for n in range(len(words))) if pause else (words,):
            writer.write(piece)
            await asyncio.sleep(pause)

    talking = asyncio.create_task(talk())
    try:
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass  # what the server answers to a hello
    finally:
        talking.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await talking
        writer.close()
    return time.monotonic() - started


async def test_a_connection_without_a_handshake_ends_in_time_however_it_is_spun_out(
    door: OpenDoor, certificates: Path
) -> None:
    here = await door(handshake_timeout=TIMEOUT)
    whole = hello(certificates)
    assert len(whole) * 0.05 > 3 * TIMEOUT, "byte by byte it takes much longer than it may"
    ways = {
        "nothing": (b"", 0.0),
        "half a hello": (whole[: len(whole) // 2], 0.0),
        "a hello and no more": (whole, 0.0),
        "a hello of many kilobytes that does not come": (b"\x16\x03\x01\x40\x00" + b"\1" * 100, 0.0),
        "byte by byte": (whole, 0.05),
    }
    async with asyncio.timeout(GRPC_TIMEOUT), here.channel("south") as honest:
        await HealthStub(honest).Check(CHECK)
        crowd = [open_for(here.port, *way) for way in ways.values() for _ in range(20)]
        spinning = asyncio.gather(*crowd)
        await asyncio.sleep(TIMEOUT / 2)
        await HealthStub(honest).Check(CHECK)
        async with here.channel("north") as late_joiner:
            await HealthStub(late_joiner).Check(CHECK)
        took = await spinning
        assert min(took) > 0.9 * TIMEOUT, "nobody is turned away who may only be slow"
        assert max(took) < GRPC_TIMEOUT / 2, dict(zip(ways, took[::20], strict=True))
        # A connection is not ended because it is older than that.
        await HealthStub(honest).Check(CHECK)


async def test_a_connection_without_a_call_ends_and_its_client_dials_again(door: OpenDoor, certificates: Path) -> None:
    here = await door(request_timeout=1.0)
    async with asyncio.timeout(60), here.channel("south") as honest:
        await HealthStub(honest).Check(CHECK)
        reader, writer = await asyncio.open_connection("localhost", here.port, ssl=tls_of(certificates))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # empty settings
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()
        await HealthStub(honest).Check(CHECK)  # its connection has ended meanwhile


async def test_neither_a_client_nor_all_together_have_more_calls_open_than_the_server_takes(door: OpenDoor) -> None:
    here = await door(max_calls=MOST + 2)
    async with asyncio.timeout(30), here.channel("north") as north, here.channel("south") as south:
        calls = [await watching(north) for _ in range(MOST)]
        async with here.channel("north") as again:  # a connection has no more streams, either
            code, words = await refused(HealthStub(again).Check(CHECK))
        assert (code, f"maximum is {MOST}" in words) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True), words
        calls += [await watching(south) for _ in range(2)]
        code, words = await refused(HealthStub(south).Check(CHECK))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, words
        calls.pop().cancel()
        while True:  # its place is free once the server knows
            with contextlib.suppress(grpc.aio.AioRpcError):
                await HealthStub(south).Check(CHECK)
                break
            await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()


async def test_calls_beyond_those_that_may_be_open_are_logged_at_the_pace_of_the_throttled_log(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(ThrottledLog, "add", lambda self, level, client, line: lines.append((client, line)))
    here = await door(max_calls_per_client=1)
    async with here.channel("north") as own:
        call = await watching(own)
        for _ in range(3):
            async with here.channel("north") as again:
                assert (await refused(HealthStub(again).Check(CHECK)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        call.cancel()
    assert lines == 3 * [("north", "client 'north': has 1 open calls, and further ones are rejected")]


# Calls without an end


def endless(channel: grpc.aio.Channel, kind: str) -> Any:
    """Begin a call whose message does not come."""
    method, streams = ENDLESS[kind]
    return channel.stream_stream(method)() if streams else channel.stream_unary(method)()


@pytest.mark.parametrize("kind", ENDLESS)
async def test_calls_whose_message_never_ends_are_counted_before_it_is_read(
    kind: str, door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    here = await door()
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(here.channel("north")) for _ in range(CONNECTIONS)]
        with caplog.at_level(logging.WARNING, logger="fenchel.server"):
            calls = [endless(channel, kind) for channel in channels for _ in range(MOST)]
            codes = {asyncio.create_task(call.code()) for call in calls}
            async with asyncio.timeout(60):
                while len(codes) > MOST:
                    done, codes = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
                    assert {task.result() for task in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        await here.answers("south")
        assert not [task for task in codes if task.done()], "those that may be open are, meanwhile"
        told = [line for line in caplog.messages if "'north'" in line]
        assert "further ones are rejected" in told[0]
        assert len(told) < 10
        for call in calls:
            call.cancel()
        await asyncio.wait(codes)


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_call_whose_message_never_ends_is_ended_and_its_place_is_free(kind: str, door: OpenDoor) -> None:
    here = await door(request_timeout=0.2, max_calls_per_client=1)
    async with asyncio.timeout(60), here.channel("north") as channel:
        assert await endless(channel, kind).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        whole = channel.stream_unary(ENDLESS["Probe"][0], pb.ProbeRequest.SerializeToString, pb.ProbeReply.FromString)()
        await whole.write(pb.ProbeRequest())  # and does not say that nothing follows
        assert await whole.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await here.answers("north")


async def test_a_call_of_one_message_takes_no_second_one_and_wants_the_first(door: OpenDoor) -> None:
    here = await door()
    async with asyncio.timeout(60), here.channel("north") as channel:
        for messages in (0, 2):
            call = channel.stream_unary(
                ENDLESS["Probe"][0], pb.ProbeRequest.SerializeToString, pb.ProbeReply.FromString
            )()
            for _ in range(messages):
                await call.write(pb.ProbeRequest())
            if not messages:
                await call.done_writing()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT, messages


async def test_a_client_that_is_refused_again_and_again_waits_longer_each_time(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is: another's name, another protocol, a method that is none."""
    delays: list[float] = []
    waiting = rate_limit.TokenBucket.delay

    def delay(pace: rate_limit.TokenBucket) -> float:
        seconds = waiting(pace)
        if pace.rate == rate_limit._REFUSALS_PER_SECOND:
            delays.append(seconds)
        return min(seconds, 0.01)

    monkeypatch.setattr(rate_limit, "_REFUSALS_PER_SECOND", 1e-3)
    monkeypatch.setattr(rate_limit, "_REFUSALS_AT_ONCE", 3)
    monkeypatch.setattr(rate_limit.TokenBucket, "delay", delay)
    here = await door()
    async with here.channel("north") as channel:
        join: Any = CoordinatorStub(channel).Join
        other: Any = channel.unary_unary(f"/{NAME}/Other")
        calls: list[tuple[Callable[[], Any], grpc.StatusCode]] = [
            (lambda: join(joining("south")), grpc.StatusCode.PERMISSION_DENIED),
            (lambda: join(joining("north", PROTOCOL + 1)), grpc.StatusCode.FAILED_PRECONDITION),
            (lambda: other(b""), grpc.StatusCode.UNIMPLEMENTED),
        ]
        for call, code in calls * 2:
            assert (await refused(call()))[0] is code
    assert len(delays) == 6
    assert delays[:3] == [0.0] * 3
    assert 0 < delays[3] < delays[4] < delays[5]


async def test_a_revoked_certificate_uses_up_nothing_of_the_one_that_replaced_it(
    door: OpenDoor, certificates: Path
) -> None:
    shutil.copytree(certificates / "north", certificates / "stolen")
    renew(certificates / "authority", certificates / "north")
    serial = int(describe(certificates / "stolen")["serial"], 16)
    revoke(certificates / "authority", serials=[serial])
    shutil.copy(certificates / "authority" / REVOKED, certificates / "server")
    here = await door(calls_per_second=1e-6, calls_at_once=3)
    async with here.channel("stolen") as channel:
        for _ in range(3):
            assert (await refused(HealthStub(channel).Check(CHECK)))[0] is grpc.StatusCode.PERMISSION_DENIED
    await here.answers("north")


async def test_a_monitor_is_slowed_down_by_the_bytes_of_its_probes_and_uses_up_none_of_the_client_of_its_name(
    door: OpenDoor, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not waited for: a probe that would have to wait for hours is let through."""
    make_monitor(certificates / "authority", certificates / "watch", "north")
    counted: list[tuple[float, bool]] = []
    counting = rate_limit.TokenBucket.delay

    def delay(pace: rate_limit.TokenBucket, number: float = 1.0) -> float:
        seconds = counting(pace, number)
        if pace.rate == 1e-3:
            counted.append((number, seconds > 0))
        return 0.0

    monkeypatch.setattr(rate_limit.TokenBucket, "delay", delay)
    here = await door(probe_bytes_per_second=1e-3, probe_bytes_at_once=2500)
    for name in ("watch", "north"):
        async with here.channel(name) as own:
            for _ in range(3):
                await CoordinatorStub(own).Probe(pb.ProbeRequest(payload=bytes(400), reply_bytes=600))
            await refused(CoordinatorStub(own).Probe(pb.ProbeRequest(reply_bytes=FRAME_BYTES + 1)))
    assert counted == 2 * [(1000, False), (1000, False), (1000, True)]


async def waiting_refusals(limits: Limits, clients: int, calls: int) -> tuple[list[int], int]:
    """Have calls refused; return how many of each client wait, and how many are left when all have been ended."""
    doors = rate_limit.RateLimiter(limits)
    names = [f"client-{number}" for number in range(clients)]
    waiting = [asyncio.create_task(doors.refusing(name)) for name in names for _ in range(calls)]
    await asyncio.sleep(0)
    most = [doors._visitor(name).waiting for name in names]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return most, sum(doors._visitor(name).waiting for name in names) + doors._waiting


async def test_what_waits_to_be_refused_is_bounded_for_each_client_and_for_all() -> None:
    assert await waiting_refusals(Limits(max_refusals_per_client=3), 1, 100) == ([3], 0)
    assert await waiting_refusals(Limits(max_refusals_per_client=30, max_refusals=40), 3, 100) == ([30, 10, 0], 0)


async def test_two_hundred_and_fifty_six_refusals_of_one_client_wait() -> None:
    assert await waiting_refusals(Limits.of(2), 1, 300) == ([256], 0)


def test_refusals_that_wait_take_no_calls_of_others() -> None:
    """gRPC counts both together."""
    limits = Limits.of(10)
    assert limits.max_calls - limits.max_refusals == 10 * limits.max_calls_per_client + 64
