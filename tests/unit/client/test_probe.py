"""The probe measures what a real gRPC server lets it see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from fenchel.client.probe import probe
from fenchel.common.errors import CredentialError, UnreachableError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import options
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport import service as transport
from tests.messages import raises

Answer = Callable[[pb.ProbeRequest, Any], Awaitable[pb.ProbeReply]]


@asynccontextmanager
async def serving(
    credentials: Credentials | None = None,
    answer: Answer | None = None,
    *,
    method: str = "Probe",
    host: str = "127.0.0.1",
) -> AsyncIterator[str]:
    """Serve the project's own service, or a Probe that a test answers itself."""
    listening = grpc.aio.server(options=options(20.0))
    if answer is None:
        service = transport.Service(cast(Coordinator, None), secure=credentials is not None)
        handler = service.handler()
    else:
        unary = grpc.unary_unary_rpc_method_handler(answer, pb.ProbeRequest.FromString, pb.ProbeReply.SerializeToString)
        handler = grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", {method: unary})
    listening.add_generic_rpc_handlers((handler,))
    if credentials is None:
        port = listening.add_insecure_port(f"{host}:0")
    else:
        port = listening.add_secure_port(f"{host}:0", credentials.for_server())
    await listening.start()
    try:
        yield f"{host}:{port}"
    finally:
        await listening.stop(None)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_all(folder, [], ["north"])
    return folder


@pytest.mark.parametrize("secure", [False, True])
async def test_a_server_on_this_machine_is_near_quick_and_of_the_same_time(certs: Path, secure: bool) -> None:
    theirs = Credentials.load(certs / "server") if secure else None
    mine = Credentials.load(certs / "north") if secure else None
    async with serving(theirs) as address:
        result = await probe(address, mine, "north", pings=30, seconds=0.2)
    assert (result.client, result.server, result.pings) == ("north", address, 30)
    assert 0 < result.rtt_p50 <= result.rtt_p90 <= result.rtt_p99 < 1
    assert 0 < result.jitter < 1
    assert abs(result.clock_offset) <= result.clock_uncertainty < 0.1
    assert result.upload > 1e6
    assert result.download > 1e6


async def test_the_clock_offset_is_what_must_be_added_to_the_clients_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + 5_000_000_000)
    monkeypatch.setattr(transport, "time", ahead)
    async with serving() as address:
        result = await probe(address, None, "north", pings=20, seconds=0.0)
    assert abs(result.clock_offset - 5.0) <= result.clock_uncertainty < 0.1


async def test_throughput_counts_payload_bytes_with_several_in_flight() -> None:
    sent = {"up": 0, "down": 0}
    open_now = most = 0

    async def answer(request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        nonlocal open_now, most
        sent["up"] += len(request.payload)
        sent["down"] += request.reply_bytes
        if request.payload or request.reply_bytes:
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.05)
            open_now -= 1
        return pb.ProbeReply(payload=bytes(request.reply_bytes))

    started = time.perf_counter()
    async with serving(answer=answer) as address:
        result = await probe(address, None, "north", pings=2, payload_bytes=1000, seconds=0.5)
    elapsed = time.perf_counter() - started
    for rate, counted in ((result.upload, sent["up"]), (result.download, sent["down"])):
        assert rate <= 4 * 1000 / 0.05
        assert rate * 0.5 <= counted <= rate * elapsed
    assert most == 4


async def test_a_server_that_does_not_answer_or_is_of_something_else_is_unreachable() -> None:
    async def answer(request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        return pb.ProbeReply()

    async with serving(answer=answer, method="Other") as address:
        with raises(UnreachableError):
            await probe(address, None, "north")
    with raises(UnreachableError):
        await probe(address, None, "north")


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ("foreign/server", "own/north"),
        ("own/server", "foreign/north"),
        ("own/server", "rejected"),
        ("own/server", None),
        (None, "own/north"),
    ],
)
async def test_certificates_that_do_not_fit_are_said_to_be_the_trouble(
    tmp_path: Path, theirs: str | None, mine: str | None
) -> None:
    make_all(tmp_path / "own", [], ["north"])
    make_all(tmp_path / "foreign", [], ["north"])
    own, foreign = tmp_path / "own" / "north", tmp_path / "foreign" / "north"
    rejected = tmp_path / "rejected"  # trusts the server, which does not trust it
    rejected.mkdir()
    for folder, name in ((own, "authority.pem"), (foreign, "certificate.pem"), (foreign, "key.pem")):
        (rejected / name).write_bytes((folder / name).read_bytes())
    async with serving(Credentials.load(tmp_path / theirs) if theirs else None) as address:
        with raises(CredentialError):
            await probe(address, Credentials.load(tmp_path / mine) if mine else None, "north")


async def test_a_host_that_the_servers_certificate_does_not_name_is_said_to_be_the_trouble(certs: Path) -> None:
    async with serving(Credentials.load(certs / "server"), host="127.0.0.2") as address:
        with raises(CredentialError):
            await probe(address, Credentials.load(certs / "north"), "north")
