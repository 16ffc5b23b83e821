"""What a client says of a server that does not take its call."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from fenchel.client.connection import Connection, Participant
from fenchel.client.local_data import LocalData
from fenchel.common.errors import UnreachableError
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
    said: list[str] = []
    with ThreadPoolExecutor(1) as executor:

        def connection(name: str, retry_for: float) -> Connection:
            who = Participant(name, address, None, LocalData(), retry_for=retry_for)
            return Connection(who, executor, said.append)

        first = asyncio.create_task(connection("a", 60.0).take_part())
        await begun.wait()
        with raises(UnreachableError):
            await connection("b", 0.2).take_part()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    await server.stop(None)
    assert f"b: {address} has as many calls open as it may; trying again" in said
    assert not any("does not answer" in each for each in said)
