"""Refusal of clients by a server that has ended with an error, so that they receive the reason."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import grpc

from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import options

log = logging.getLogger("fenchel.server")

_KEEPALIVE = 20.0  # keepalive interval in seconds
_CALLS = 1024  # largest number of concurrent calls, each of which the server answers immediately


async def refuse(address: str, credentials: Credentials | None, reason: str, seconds: float) -> None:
    """Listen on an address, and refuse all clients with a reason, for a limited time.

    Parameters
    ----------
    address
        Address ``host:port``. If the server cannot listen on it, the function returns at once.
    credentials
        Credentials of the server; ``None``: no TLS.
    reason
        Reason for the clients.
    seconds
        Duration of the refusal in seconds.
    """

    async def abort(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the server has ended: {reason}")

    server = grpc.aio.server(options=options(_KEEPALIVE), maximum_concurrent_rpcs=_CALLS)
    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(abort),
        "Work": grpc.stream_stream_rpc_method_handler(abort),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", calls),))
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials.for_server())
    except RuntimeError as error:
        log.debug("clients cannot learn why there is no run: %s", error)
        return
    await server.start()
    try:
        await asyncio.sleep(seconds)
    finally:
        await server.stop(None)
