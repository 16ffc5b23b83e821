"""The health check tells a server that serves from one that does not, with TLS and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fenchel.common.errors import UnreachableError
from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.monitoring.health import check_serving, main
from tests.messages import raises

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def serving(credentials: Credentials | None, status: int = SERVING) -> AsyncIterator[str]:
    listening = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set("", status)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, listening)
    if credentials is None:
        port = listening.add_insecure_port("127.0.0.1:0")
    else:
        port = listening.add_secure_port("127.0.0.1:0", credentials.for_server())
    await listening.start()
    try:
        yield f"localhost:{port}"
    finally:
        await listening.stop(None)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_all(folder, [], ["health"])
    return folder


async def test_a_server_that_serves_is_well_and_turns_a_check_without_certificate_away(certs: Path) -> None:
    async with serving(None) as address:
        assert await asyncio.to_thread(main, [address]) == 0
    async with serving(Credentials.load(certs / "server")) as address:
        assert await asyncio.to_thread(main, [address, "--certs", str(certs / "health")]) == 0
        with raises(UnreachableError):  # without a certificate of the authority
            await asyncio.to_thread(check_serving, address, None)


async def test_a_server_that_says_that_it_does_not_serve_is_unwell() -> None:
    async with serving(None, NOT_SERVING) as address:
        with raises(UnreachableError) as caught:
            await asyncio.to_thread(check_serving, address, None)
    assert "does not serve" in caught.value.problem, "it was reached, and said so"


async def test_a_server_that_is_gone_is_unwell(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(None) as address:
        pass
    assert await asyncio.to_thread(main, [address]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_folder_without_certificates_is_unwell(tmp_path: Path) -> None:
    assert main(["localhost:1", "--certs", str(tmp_path)]) == 1
