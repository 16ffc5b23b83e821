"""The gRPC service: who calls is established here, and nothing else is decided."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from threadpoolctl import threadpool_limits

from common.credentials import Credentials
from common.errors import IdentityInUseError, JoinRefusedError, UnreachableError, WireError
from common.frames import FRAME_BYTES
from common.memory import keep_freed_memory
from common.transport import CLIENT_KEY, INSTANCE_KEY, options
from proto import fenchel_pb2 as pb
from server.coordinator import Coordinator, Summary

log = logging.getLogger("fenchel.server")

_NAME = "fenchel.v1.Coordinator"
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class _ServerStream:
    """The server's side of a Work call, as frames."""

    context: _Context

    async def read(self) -> bytes | None:
        frame = await self.context.read()
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        await self.context.write(frame)


class Service:
    """Answers the calls of ``fenchel.v1.Coordinator`` for one run.

    Work hands frames on as bytes: :mod:`common.frames` reads and writes them.
    """

    def __init__(self, coordinator: Coordinator, *, secure: bool) -> None:
        self._coordinator = coordinator
        self._secure = secure

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server registers."""
        return grpc.method_handlers_generic_handler(
            _NAME,
            {
                "Join": grpc.unary_unary_rpc_method_handler(
                    self._join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString
                ),
                "Work": grpc.stream_stream_rpc_method_handler(self._work),
                "Probe": grpc.unary_unary_rpc_method_handler(
                    self._probe, pb.ProbeRequest.FromString, pb.ProbeReply.SerializeToString
                ),
            },
        )

    async def _identity(self, context: _Context, claimed: str) -> str:
        """Return who calls; a client with a certificate can speak only for itself."""
        if not claimed or len(claimed) > 128 or not claimed.isprintable():
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "a client id has 1 to 128 printable characters"
            )
        if self._secure:
            names = list(context.auth_context().get("x509_common_name", []))
            certified = names[0].decode(errors="replace") if names else ""
            if certified != claimed:
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"the certificate is for {certified!r}, but the client calls itself {claimed!r}; "
                    "leave --name out, or use the certificate of that name",
                )
        return claimed

    async def _join(self, request: pb.JoinRequest, context: _Context) -> pb.JoinReply:
        await self._identity(context, request.client)
        try:
            return await self._coordinator.join(request)
        except JoinRefusedError as error:
            log.warning("client %r is refused: %s", request.client, error)
            in_use = isinstance(error, IdentityInUseError)
            code = grpc.StatusCode.ALREADY_EXISTS if in_use else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, str(error))
            raise

    async def _work(self, frames: AsyncIterator[bytes], context: _Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        client = await self._identity(context, str(metadata.get(CLIENT_KEY, "")))
        instance = metadata.get(INSTANCE_KEY, b"")
        try:
            await self._coordinator.work(
                client, instance if isinstance(instance, bytes) else instance.encode(), _ServerStream(context)
            )
        except (JoinRefusedError, WireError) as error:
            log.warning("client %r: %s", client, error)
            code = (
                grpc.StatusCode.ABORTED
                if isinstance(error, JoinRefusedError)
                else grpc.StatusCode.INVALID_ARGUMENT
            )
            await context.abort(code, str(error))
        except asyncio.CancelledError:
            log.debug("client %r: its stream broke", client)
            raise

    async def _probe(self, request: pb.ProbeRequest, context: _Context) -> pb.ProbeReply:
        received = time.time_ns()
        if request.reply_bytes > FRAME_BYTES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"a probe may ask for {FRAME_BYTES} bytes at most"
            )
        return pb.ProbeReply(
            payload=bytes(request.reply_bytes), received_unix_ns=received, sent_unix_ns=time.time_ns()
        )


@asynccontextmanager
async def listening(
    coordinator: Coordinator, address: str, credentials: Credentials | None, keepalive: float
) -> AsyncIterator[int]:
    """Serve a run's clients for the duration of a ``with`` block.

    Parameters
    ----------
    coordinator
        The run.
    address
        ``host:port``; port 0 takes a free one.
    credentials
        The server's; ``None``: no TLS.
    keepalive
        Seconds between pings.

    Yields
    ------
    int
        The port.

    Raises
    ------
    UnreachableError
        The address cannot be listened on.
    """
    server = grpc.aio.server(options=options(keepalive))
    server.add_generic_rpc_handlers((Service(coordinator, secure=credentials is not None).handler(),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials.for_server())
    except RuntimeError as error:
        raise UnreachableError(
            f"cannot listen on {address}: {error}; is the port in use, or the name unknown?"
        ) from None
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await servicer.set(_NAME, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield port
    finally:
        await servicer.enter_graceful_shutdown()
        await server.stop(grace=1.0)


async def serve(
    coordinator: Coordinator,
    address: str,
    credentials: Credentials | None,
    on_listening: Callable[[int], None],
) -> Summary:
    """Conduct a run for clients that dial in; return when it is over and they have been told.

    Parameters
    ----------
    coordinator
        The run.
    address, credentials
        As for :func:`listening`.
    on_listening
        Told the port as soon as clients can dial it.

    Raises
    ------
    FenchelError
        As :meth:`server.coordinator.Coordinator.conduct`.
    """
    keepalive = coordinator.settings.network.keepalive
    keep_freed_memory()
    # One thread for linear algebra: sums must not depend on the machine's cores.
    with threadpool_limits(1):
        async with listening(coordinator, address, credentials, keepalive) as port:
            on_listening(port)
            try:
                return await coordinator.conduct()
            finally:
                await coordinator.farewells()
