"""Connections that never become calls end in time, and there are never more calls than a server takes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.deploy.certificates.making import make_all
from fenchel.server.coordinator import Coordinator
from fenchel.server.metering.limits import Limits
from fenchel.server.transport.service import listening
from tests.conftest import MakeSettings
from tests.hostile.test_entrance import HealthStub, channel, refused, watching

TIMEOUT = 2.0
GRPC_TIMEOUT = 120.0
"""How long gRPC itself listens to a handshake unless it is told otherwise."""
CALLS = 4


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder, ["localhost"], ["north", "south"])
    return folder


@pytest.fixture
async def port(make_settings: MakeSettings, certificates: Path, tmp_path: Path) -> AsyncIterator[int]:
    limits = Limits(handshake_timeout=TIMEOUT, max_calls=CALLS, max_calls_per_client=CALLS)
    coordinator = Coordinator(make_settings(), RunFolder.create(tmp_path, "doors"), limits=limits)
    async with listening(coordinator, "127.0.0.1:0", Credentials.load(certificates / "server"), 20.0) as number:
        yield number


def hello(certificates: Path) -> bytes:
    """Return how a client of the federation begins its handshake."""
    context = ssl.create_default_context(cafile=str(certificates / "north" / AUTHORITY))
    context.load_cert_chain(certificates / "north" / CERTIFICATE, certificates / "north" / KEY)
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
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
    port: int, certificates: Path
) -> None:
    whole = hello(certificates)
    assert len(whole) * 0.05 > 3 * TIMEOUT, "byte by byte it takes much longer than it may"
    ways = {
        "nothing": (b"", 0.0),
        "half a hello": (whole[: len(whole) // 2], 0.0),
        "a hello and no more": (whole, 0.0),
        "a hello of many kilobytes that does not come": (b"\x16\x03\x01\x40\x00" + b"\1" * 100, 0.0),
        "byte by byte": (whole, 0.05),
    }
    async with asyncio.timeout(GRPC_TIMEOUT), channel(port, certificates / "south") as honest:
        await HealthStub(honest).Check(health_pb2.HealthCheckRequest())
        crowd = [open_for(port, *way) for way in ways.values() for _ in range(20)]
        spinning = asyncio.gather(*crowd)
        await asyncio.sleep(TIMEOUT / 2)
        await HealthStub(honest).Check(health_pb2.HealthCheckRequest())
        async with channel(port, certificates / "north") as late_joiner:
            await HealthStub(late_joiner).Check(health_pb2.HealthCheckRequest())
        took = await spinning
        assert min(took) > 0.9 * TIMEOUT, "nobody is turned away who may only be slow"
        assert max(took) < GRPC_TIMEOUT / 2, dict(zip(ways, took[::20], strict=True))
        # A connection is not ended because it is older than that.
        await HealthStub(honest).Check(health_pb2.HealthCheckRequest())


async def test_a_connection_without_a_call_ends_and_its_client_dials_again(
    make_settings: MakeSettings, certificates: Path, tmp_path: Path
) -> None:
    coordinator = Coordinator(make_settings(), RunFolder.create(tmp_path, "idle"), limits=Limits(request_timeout=1.0))
    tls = ssl.create_default_context(cafile=str(certificates / "north" / AUTHORITY))
    tls.load_cert_chain(certificates / "north" / CERTIFICATE, certificates / "north" / KEY)
    tls.set_alpn_protocols(["h2"])
    async with (
        asyncio.timeout(60),
        listening(coordinator, "127.0.0.1:0", Credentials.load(certificates / "server"), 20.0) as port,
        channel(port, certificates / "south") as honest,
    ):
        await HealthStub(honest).Check(health_pb2.HealthCheckRequest())
        reader, writer = await asyncio.open_connection("localhost", port, ssl=tls)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # empty settings
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()
        await HealthStub(honest).Check(health_pb2.HealthCheckRequest())  # its connection has ended meanwhile


async def test_all_clients_together_have_no_more_calls_open_than_the_server_takes(
    port: int, certificates: Path
) -> None:
    async with (
        asyncio.timeout(30),
        channel(port, certificates / "north") as north,
        channel(port, certificates / "south") as south,
    ):
        # Each has fewer than it may have alone.
        calls = [await watching(each) for each in (north, north, south, south)]
        assert len(calls) == CALLS
        for each in (north, south):
            code, words = await refused(HealthStub(each).Check(health_pb2.HealthCheckRequest()))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, words
        calls.pop().cancel()
        while True:  # its place is free once the server knows
            with contextlib.suppress(grpc.aio.AioRpcError):
                await HealthStub(north).Check(health_pb2.HealthCheckRequest())
                break
            await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
