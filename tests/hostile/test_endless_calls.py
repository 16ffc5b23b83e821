"""Calls that never end, or that are refused, take a bounded part of the server; others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED
from fenchel.common.version import PROTOCOL
from fenchel.deploy.certificates.description import describe
from fenchel.deploy.certificates.making import make_all, make_monitor, renew
from fenchel.deploy.certificates.revocation import revoke
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server.coordinator import Coordinator
from fenchel.server.metering import rate_limit
from fenchel.server.metering.limits import Limits
from fenchel.server.transport.service import listening
from tests.conftest import MakeSettings
from tests.hostile.test_entrance import HealthStub, refused

MOST = 4
"""Calls of one client that the server holds; as many refusals may wait besides."""
ALL = 40
"""Calls that it holds of all clients together."""
CONNECTIONS = 60

ENDLESS = {
    "Join": ("/fenchel.v1.Coordinator/Join", False),
    "Probe": ("/fenchel.v1.Coordinator/Probe", False),
    "Check": ("/grpc.health.v1.Health/Check", False),
    "Watch": ("/grpc.health.v1.Health/Watch", True),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder, ["localhost"], ["north", "south"])
    return folder


@dataclass
class Door:
    """A server that listens, and its clients' certificates."""

    port: int
    certificates: Path

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
            await HealthStub(channel).Check(health_pb2.HealthCheckRequest())


def joining(name: str, protocol: int = PROTOCOL) -> pb.JoinRequest:
    return pb.JoinRequest(protocol=protocol, client=name, instance=b"i" * 16)


@pytest.fixture
async def door(
    make_settings: MakeSettings, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """Open a server with some limits."""
    monkeypatch.setattr(rate_limit, "_REFUSALS_PER_SECOND", 1000.0)
    limits: dict[str, Any] = {"max_calls": ALL, "max_calls_per_client": MOST, "calls_per_second": 1e6}
    async with contextlib.AsyncExitStack() as stack:

        async def open_door(folder: Path = certificates, **changes: Any) -> Door:
            settings = make_settings(clients=1)
            allowed = Limits(**(limits | changes))
            coordinator = Coordinator(settings, RunFolder.create(tmp_path, "door"), limits=allowed)
            credentials = Credentials.load(folder / "server")
            port = await stack.enter_async_context(listening(coordinator, "127.0.0.1:0", credentials, 20.0))
            return Door(port, folder)

        yield open_door


def endless(channel: grpc.aio.Channel, kind: str) -> Any:
    """Begin a call whose message does not come."""
    method, streams = ENDLESS[kind]
    return channel.stream_stream(method)() if streams else channel.stream_unary(method)()


@pytest.mark.parametrize("kind", ENDLESS)
async def test_calls_whose_message_never_ends_are_counted_before_it_is_read(
    kind: str, door: Callable[..., Any], caplog: pytest.LogCaptureFixture
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
        assert "is refused more" in told[0]
        assert len(told) < 10
        for call in calls:
            call.cancel()
        await asyncio.wait(codes)


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_call_whose_message_never_ends_is_ended_and_its_place_is_free(
    kind: str, door: Callable[..., Any]
) -> None:
    here = await door(request_timeout=0.2, max_calls_per_client=1)
    async with asyncio.timeout(60), here.channel("north") as channel:
        assert await endless(channel, kind).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        whole = channel.stream_unary(ENDLESS["Probe"][0], pb.ProbeRequest.SerializeToString, pb.ProbeReply.FromString)()
        await whole.write(pb.ProbeRequest())  # and does not say that nothing follows
        assert await whole.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await here.answers("north")


async def test_a_call_of_one_message_takes_no_second_one_and_wants_the_first(door: Callable[..., Any]) -> None:
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
    door: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
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
        join, other = CoordinatorStub(channel).Join, channel.unary_unary("/fenchel.v1.Coordinator/Other")
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
    door: Callable[..., Any], tmp_path: Path
) -> None:
    certificates = tmp_path / "certs"
    make_all(certificates, ["localhost"], ["north"])
    shutil.copytree(certificates / "north", certificates / "stolen")
    renew(certificates / "authority", certificates / "north")
    serial = int(describe(certificates / "stolen")["serial"], 16)
    revoke(certificates / "authority", serials=[serial])
    shutil.copy(certificates / "authority" / REVOKED, certificates / "server")
    here = await door(certificates, calls_per_second=1e-6, calls_at_once=3)
    async with here.channel("stolen") as channel:
        for _ in range(3):
            check = HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert (await refused(check))[0] is grpc.StatusCode.PERMISSION_DENIED
    await here.answers("north")


async def test_a_monitor_uses_up_nothing_of_the_client_of_its_name(door: Callable[..., Any], tmp_path: Path) -> None:
    certificates = tmp_path / "certs"
    make_all(certificates, ["localhost"], ["north"])
    make_monitor(certificates / "authority", certificates / "watch", "north")
    here = await door(certificates, calls_per_second=1e-6, calls_at_once=3)
    async with here.channel("watch") as channel:
        for _ in range(3):
            await HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await here.answers("north")


def test_what_waits_to_be_refused_is_bounded_too() -> None:
    async def scene() -> tuple[int, int]:
        doors = rate_limit.RateLimiter(Limits(max_calls_per_client=3))
        waiting = [asyncio.create_task(doors.refusing("a")) for _ in range(100)]
        await asyncio.sleep(0)
        visitor = doors._visitor("a")
        most = visitor.waiting
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return most, visitor.waiting

    assert asyncio.run(scene()) == (3, 0)
