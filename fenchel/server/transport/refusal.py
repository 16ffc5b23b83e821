"""Answers of a server that has no run to offer: it ended by an error, and clients that dial in learn which."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import grpc

from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import options

log = logging.getLogger("fenchel.server")

_KEEPALIVE = 20.0  # seconds
_CALLS = 1024  # at once; each is answered immediately


async def refuse(address: str, credentials: Credentials | None, reason: str, seconds: float) -> None:
    """Refuse all clients that dial an address, with a reason, for some seconds.

    Parameters
    ----------
    address
        ``host:port``. If it cannot be listened on, nothing is done.
    credentials
        The server's; ``None``: no TLS.
    reason
        Why there is no run, as clients may read it.
    seconds
        How long.
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
        log.debug("clients cannot be told why there is no run: %s", error)
        return
    await server.start()
    try:
        await asyncio.sleep(seconds)
    finally:
        await server.stop(None)
