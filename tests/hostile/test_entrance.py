"""Health checks and reflection are calls like others: not for who was shut out, and not without end."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.channel import CLIENT_KEY
from fenchel.deploy.certificates.making import make_all, make_monitor
from fenchel.deploy.certificates.revocation import revoke
from fenchel.deploy.monitoring.health import main as check_health
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server.coordinator import Coordinator
from fenchel.server.metering.limits import Limits
from fenchel.server.transport import revocation_check
from fenchel.server.transport.service import listening
from tests.conftest import MakeSettings

Stream: TypeAlias = Any
HealthStub: Any = health_pb2_grpc.HealthStub  # their type stubs know no methods
ServerReflectionStub: Any = reflection_pb2_grpc.ServerReflectionStub
ASKED = reflection_pb2.ServerReflectionRequest(list_services="")
LIMITS = Limits(calls_per_second=10.0, calls_at_once=40, max_calls_per_client=3)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_all(tmp_path / "certs", ["localhost"], ["health", "north"])
    return tmp_path / "certs"


@pytest.fixture
def coordinator(make_settings: MakeSettings, tmp_path: Path) -> Coordinator:
    return Coordinator(make_settings(), RunFolder.create(tmp_path, "entrance"), limits=LIMITS)


@pytest.fixture
async def port(coordinator: Coordinator, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(revocation_check, "_LOOK_SECONDS", 0.05)
    async with listening(coordinator, "127.0.0.1:0", Credentials.load(certificates / "server"), 20.0) as number:
        yield number


def channel(port: int, folder: Path) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(f"localhost:{port}", Credentials.load(folder).for_channel())


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
    call: Stream = HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
    return call


async def reflecting(channel: grpc.aio.Channel) -> Stream:
    call: Stream = ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(ASKED)
    assert len((await call.read()).list_services_response.service) == 3
    return call


async def test_a_revoked_client_is_refused_by_every_service_and_its_streams_are_ended(
    port: int, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel(port, certificates / "north") as own:
        open_calls: Sequence[Stream] = (await watching(own), await reflecting(own))
        await HealthStub(own).Check(health_pb2.HealthCheckRequest())
        with caplog.at_level(logging.WARNING, logger="fenchel.server"):
            shut_out(certificates, "north")
            for call in open_calls:
                code, words = await refused(call.read())
                assert (code, "was revoked" in words) == (grpc.StatusCode.PERMISSION_DENIED, True), words
            reflection = ServerReflectionStub(own).ServerReflectionInfo()
            for again in (
                HealthStub(own).Check(health_pb2.HealthCheckRequest()),
                HealthStub(own).Watch(health_pb2.HealthCheckRequest()).read(),
                reflection.read(),
                CoordinatorStub(own).Probe(pb.ProbeRequest()),
            ):
                code, words = await refused(again)
                assert (code, "was revoked" in words) == (grpc.StatusCode.PERMISSION_DENIED, True), words
    assert any("'north'" in record.getMessage() for record in caplog.records)


async def test_the_health_check_of_a_container_goes_on_until_its_own_certificate_is_revoked(
    port: int, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"localhost:{port}", "--certs", str(certificates / "health")]
    assert await asyncio.to_thread(check_health, words) == 0
    shut_out(certificates, "north")
    assert await asyncio.to_thread(check_health, words) == 0
    shut_out(certificates, "health")
    assert await asyncio.to_thread(check_health, words) == 1
    assert "PERMISSION_DENIED: the certificate of 'health'" in capsys.readouterr().err


async def test_a_monitor_can_ask_how_the_server_is_and_take_no_part(
    port: int, certificates: Path, tmp_path: Path
) -> None:
    """Whatever its name: here it is that of a client."""
    make_monitor(certificates / "authority", tmp_path / "north", "north")
    words = [f"localhost:{port}", "--certs", str(tmp_path / "north")]
    assert await asyncio.to_thread(check_health, words) == 0
    async with channel(port, tmp_path / "north") as own:
        join = CoordinatorStub(own).Join(pb.JoinRequest(protocol=PROTOCOL, client="north", instance=b"i"))
        work: Stream = own.stream_stream("/fenchel.v1.Coordinator/Work")(metadata=((CLIENT_KEY, "north"),))
        for call in (join, work.read()):
            code, words_back = await refused(call)
            assert (code, "a monitor's" in words_back) == (grpc.StatusCode.PERMISSION_DENIED, True), words_back


async def test_nobody_has_more_of_these_calls_open_than_of_others(port: int, certificates: Path) -> None:
    async with channel(port, certificates / "north") as first, channel(port, certificates / "north") as second:
        calls = [await watching(first), await watching(first), await watching(second)]
        code, words = await refused(HealthStub(second).Check(health_pb2.HealthCheckRequest()))
        assert (code, "may have 3" in words) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True), words
        async with channel(port, certificates / "health") as other:
            await HealthStub(other).Check(health_pb2.HealthCheckRequest())
        for call in calls:
            call.cancel()


async def test_questions_on_one_stream_are_answered_at_the_rate_of_calls(port: int, certificates: Path) -> None:
    async with channel(port, certificates / "north") as own:
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


async def test_what_crosses_beside_the_run_is_in_the_account_as_it_crossed(
    port: int, certificates: Path, coordinator: Coordinator
) -> None:
    """Held against the messages themselves, as this client wrote and read them."""
    wire: dict[str, list[Any]] = {}

    def crossed(*messages: Any) -> None:
        for message in messages:
            wire.setdefault(message.DESCRIPTOR.name, []).append(message)

    async with channel(port, certificates / "north") as own:
        for probe in (pb.ProbeRequest(), pb.ProbeRequest(payload=b"x" * 100), pb.ProbeRequest(reply_bytes=9)):
            crossed(probe, await CoordinatorStub(own).Probe(probe))
        for check in (health_pb2.HealthCheckRequest(), health_pb2.HealthCheckRequest(service="fenchel.v1.Coordinator")):
            crossed(check, await HealthStub(own).Check(check))
        watch = HealthStub(own).Watch(health_pb2.HealthCheckRequest())
        crossed(health_pb2.HealthCheckRequest(), await watch.read())
        watch.cancel()
        call = ServerReflectionStub(own).ServerReflectionInfo()
        file = reflection_pb2.ServerReflectionRequest(file_containing_symbol="fenchel.v1.Coordinator")
        for question in (ASKED, file):
            await call.write(question)
            crossed(question, await call.read())
        call.cancel()
    coordinator.disclosures.save()
    account = json.loads(coordinator.folder.disclosures.read_text())
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
