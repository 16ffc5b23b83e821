"""Connections of clients to servers that are full, and to servers that break off."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fenchel.client.client_process import host
from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData, OwnFile
from fenchel.common.errors import CredentialError, DataError, JoinRefusedError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import CLIENT_KEY
from fenchel.common.wire.frames import frames
from fenchel.deploy.certificates.authority import make_authority
from fenchel.deploy.certificates.making import make_client, make_server
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises


async def test_a_full_server_is_not_said_to_be_silent() -> None:
    """The words are gRPC's own, of a server that has as many calls open as it may."""
    begun = asyncio.Event()

    async def never(request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    server = grpc.aio.server(maximum_concurrent_rpcs=1)
    join = grpc.unary_unary_rpc_method_handler(never, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", {"Join": join}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    said: asyncio.Queue[str] = asyncio.Queue()
    with ThreadPoolExecutor(1) as executor:

        def connection(name: str) -> Connection:
            who = Participant(name=name, server=address, local_data=LocalData(), retry_for=60.0)
            return Connection(who, executor, said.put_nowait)

        first = asyncio.create_task(connection("a").take_part())
        await begun.wait()
        second = asyncio.create_task(connection("b").take_part())
        assert await said.get() == f"b: {address} has no free call; trying again"
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
    await server.stop(None)


async def test_a_file_that_cannot_be_used_ends_a_client_while_others_are_waited_for(tmp_path: Path) -> None:
    settings = {
        "rounds": 1,
        "clients": 2,
        "data": {"name": "own", "classes": [0, 1]},
        "objective": {"kind": "logistic"},
        "algorithm": {"name": "fedavg"},
    }
    (tmp_path / "own.csv").write_text("age,outcome\n40,1\n50,0\n")

    withdrawn: list[str] = []

    async def join(request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        withdrawn.append(request.withdrawn)
        await asyncio.sleep(0.01)
        return pb.JoinReply(run="20260101-000000-own-ab12", settings=json.dumps(settings), joined=1, expected=2)

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", {"Join": method}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        with ThreadPoolExecutor(1) as executor:
            for label, key in (("outcom", "column"), ("age", "key")):
                who = Participant(name="a", server=address, local_data=OwnFile(tmp_path / "own.csv", label))
                with pytest.raises(DataError) as caught:
                    await Connection(who, executor).take_part()
                assert getattr(caught.value, key)
                assert withdrawn[-2:] == ["", "DataError"], "the kind of the error alone"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("name", ["a", "zürich 北"])
async def test_a_stream_that_breaks_after_hours_is_opened_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits for ``retry_for`` seconds from the moment at which the stream broke, not from its beginning."""
    settings = {
        "rounds": 1,
        "clients": 1,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": "fedavg"},
    }
    retry_for = 60.0
    passed = 0.0  # seconds, beside those of the machine
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed, perf_counter=time.perf_counter)
    monkeypatch.setattr("fenchel.client.connection.time", clock)  # that of asyncio and gRPC goes on as it is
    streams = 0

    async def join(request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        assignment = pb.Assignment(index=0, clients=1)
        return pb.JoinReply(run="20260101-000000-long-ab12", settings=json.dumps(settings), assignment=assignment)

    async def work(incoming: Any, context: Any) -> None:
        nonlocal streams, passed
        streams += 1
        assert dict(context.invocation_metadata())[CLIENT_KEY] == name.encode()
        await context.read()  # the client's hello: writing to a stream that has ended would be another case
        if streams == 1:
            for frame in frames(pb.Welcome()):
                await context.write(frame)
            passed = 100 * retry_for
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        for frame in frames(pb.Farewell(completed=True)):
            await context.write(frame)

    server = grpc.aio.server()
    calls = {
        "Join": grpc.unary_unary_rpc_method_handler(join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString),
        "Work": grpc.stream_stream_rpc_method_handler(work),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", calls),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        with ThreadPoolExecutor(1) as executor:
            who = Participant(name=name, server=address, local_data=LocalData(), retry_for=retry_for)
            farewell = await Connection(who, executor).take_part()
    finally:
        await server.stop(None)
    assert farewell.completed
    assert streams == 2


async def test_a_refused_client_ends_its_process_only_after_the_others() -> None:
    settings = {
        "rounds": 1,
        "clients": 2,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": "fedavg"},
    }
    refused = asyncio.Event()

    async def join(request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        if request.client == "b":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not in this run")
        assignment = pb.Assignment(index=0, clients=2)
        return pb.JoinReply(run="20260101-000000-two-ab12", settings=json.dumps(settings), assignment=assignment)

    async def work(incoming: Any, context: Any) -> None:
        await context.read()
        for frame in frames(pb.Welcome()):
            await context.write(frame)
        await refused.wait()
        for frame in frames(pb.Farewell(completed=True)):
            await context.write(frame)

    class Refusals(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            refused.set()

    server = grpc.aio.server()
    calls = {
        "Join": grpc.unary_unary_rpc_method_handler(join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString),
        "Work": grpc.stream_stream_rpc_method_handler(work),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", calls),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    log, handler = logging.getLogger("fenchel.client"), Refusals(logging.ERROR)
    log.addHandler(handler)
    try:
        participants = [Participant(name=name, server=address, local_data=LocalData()) for name in "ab"]
        async with asyncio.timeout(60):
            with raises(JoinRefusedError):
                await host(participants, on_event=lambda event: None)
    finally:
        log.removeHandler(handler)
        await server.stop(None)
    assert refused.is_set()


async def test_an_expired_certificate_of_the_server_is_said_to_be_renewed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("fenchel.deploy.certificates.authority.CLOCK_SKEW", timedelta(days=30))
        make_authority(tmp_path / "authority", "ours")
        make_server(tmp_path / "authority", tmp_path / "server", [], days=1)
    make_client(tmp_path / "authority", tmp_path / "a", "a")
    expired = Credentials.load(tmp_path / "server")
    server = grpc.aio.server()
    pair = [(expired.key, expired.certificate)]
    credentials = grpc.ssl_server_credentials(pair, expired.authority, require_client_auth=True)
    address = f"localhost:{server.add_secure_port('localhost:0', credentials)}"
    await server.start()
    who = Participant(
        name="a", server=address, local_data=LocalData(), credentials=Credentials.load(tmp_path / "a"), retry_for=60.0
    )
    try:
        with ThreadPoolExecutor(1) as executor, pytest.raises(CredentialError, match="fenchel certs renew"):
            await Connection(who, executor).take_part()
    finally:
        await server.stop(None)
