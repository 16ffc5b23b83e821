"""The gRPC service, which identifies callers and passes their calls to the coordinator."""

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

from fenchel.common.environment import one_thread
from fenchel.common.errors import CredentialError, IdentityInUseError, JoinRefusedError, UnreachableError, WireError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import Revocations, check_not_revoked
from fenchel.common.tls.roles import check_participant
from fenchel.common.untrusted_text import sanitize
from fenchel.common.wire.buffer_pool import KEPT_BYTES, keep_freed_memory
from fenchel.common.wire.channel import CLIENT_KEY, INSTANCE_KEY, TRACE_KEY, options
from fenchel.common.wire.frames import FRAME_BYTES
from fenchel.fleet.metering import open_files
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.rate_limit import RateLimiter
from fenchel.fleet.metering.socket_bytes import SocketBytes, Sockets
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.server.telemetry.summary import Summary
from fenchel.server.transport.interceptor import AdmissionInterceptor, Note, RefusedError, certified, counted_as, noted
from fenchel.server.transport.revocation_check import RevocationCheck, certificate_of

log = logging.getLogger("fenchel.server")

_NAME = "fenchel.v1.Coordinator"
_INSTANCE_BYTES = 64
_SOFTWARE_LENGTH = 200
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class _ServerStream:
    """Server's side of a ``Work`` call, as a stream of frames."""

    context: _Context
    sockets: Sockets

    async def read(self) -> bytes | None:
        frame = await self.context.read()
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        await self.context.write(frame)

    def read_socket_bytes(self) -> SocketBytes | None:
        return self.sockets.news(self.context.peer())


class Service:
    """Handlers of the calls of ``fenchel.v1.Coordinator`` for one run.

    ``Work`` passes frames on as bytes, which :mod:`fenchel.common.wire.frames` encodes and decodes.

    Parameters
    ----------
    coordinator
        Coordinator of the run.
    secure
        True if callers have certificates.
    limits
        Limits on the server's resources. Default: ``Limits()``.
    revocation_check
        Check for revoked certificates. Default: no check.
    note
        Function that records the direction and head of each message outside client streams.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        secure: bool,
        limits: Limits | None = None,
        revocation_check: RevocationCheck | None = None,
        note: Note = lambda direction, message: None,
    ) -> None:
        self._coordinator = coordinator
        self._revocation_check = revocation_check or RevocationCheck()
        self._secure = secure
        self._note = note
        self._sockets = Sockets()
        self._throttled_log = ThrottledLog()
        self._limits = limits or Limits()
        self._rate_limiter = RateLimiter(self._limits)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register with a gRPC server."""
        return grpc.method_handlers_generic_handler(
            _NAME,
            {
                "Join": grpc.unary_unary_rpc_method_handler(
                    self._join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString
                ),
                "Work": grpc.stream_stream_rpc_method_handler(self._work),
                "Probe": noted(
                    grpc.unary_unary_rpc_method_handler(
                        self._probe, pb.ProbeRequest.FromString, pb.ProbeReply.SerializeToString
                    ),
                    self._note,
                ),
            },
        )

    def interceptor(self) -> AdmissionInterceptor:
        """Return the admission interceptor for the gRPC server of this service."""
        return AdmissionInterceptor(
            own=_NAME,
            revocation_check=self._revocation_check,
            rate_limiter=self._rate_limiter,
            limits=self._limits,
            tell=self._tell,
            note=self._note,
        )

    def _identity(self, context: _Context, claimed: str) -> str:
        """Return the verified id of a caller.

        Raise ``RefusedError`` if the id is malformed, or the caller's certificate has another name or another role.
        """
        if not claimed or len(claimed) > 128 or not claimed.isprintable():
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the client id {claimed!r:.140} is invalid; expected 1 to 128 printable characters",
            )
        if not self._secure:
            return claimed
        try:
            check_participant(certificate_of(context))
        except CredentialError as error:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None
        if (name := certified(context)) != claimed:
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate is for {name!r}, but the client has the name {claimed!r}; leave --name out, or "
                "use the certificate of that name",
            )
        return claimed

    def _tell(self, client: str, what: str) -> None:
        """Log a problem with a client's call, within the rate limit of :class:`ThrottledLog`."""
        self._throttled_log.add(logging.WARNING, client, f"client {client!r}: {sanitize(what)}")

    async def _join(self, request: pb.JoinRequest, context: _Context) -> pb.JoinReply:
        self._identity(context, request.client)
        texts = max(len(request.software), len(request.withdrawn))
        if len(request.instance) > _INSTANCE_BYTES or texts > _SOFTWARE_LENGTH:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the client sent an instance id of {len(request.instance):,} bytes and a text of {texts:,} "
                f"characters; expected at most {_INSTANCE_BYTES} and {_SOFTWARE_LENGTH}",
            )
        try:
            return await self._coordinator.admission.join(request)
        except JoinRefusedError as error:
            in_use = isinstance(error, IdentityInUseError)
            code = grpc.StatusCode.ALREADY_EXISTS if in_use else grpc.StatusCode.FAILED_PRECONDITION
            raise RefusedError(code, str(error)) from None

    async def _work(self, frames: AsyncIterator[bytes], context: _Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        claimed = metadata.get(CLIENT_KEY, b"")
        client = self._identity(context, claimed.decode(errors="replace") if isinstance(claimed, bytes) else claimed)
        instance = metadata.get(INSTANCE_KEY, b"")
        try:
            await self._coordinator.admission.work(
                client,
                instance if isinstance(instance, bytes) else instance.encode(),
                _ServerStream(context, self._sockets),
                str(metadata.get(TRACE_KEY, "")),
            )
        except JoinRefusedError as error:
            raise RefusedError(grpc.StatusCode.ABORTED, str(error)) from None
        except WireError as error:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        except asyncio.CancelledError:
            log.debug("client %r: its stream broke", client)
            raise

    async def _probe(self, request: pb.ProbeRequest, context: _Context) -> pb.ProbeReply:
        received = time.time_ns()
        if request.reply_bytes > FRAME_BYTES:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the probe requests {request.reply_bytes:,} bytes; expected at most {FRAME_BYTES:,}",
            )
        await self._rate_limiter.wait_for_bytes(counted_as(context), len(request.payload) + request.reply_bytes)
        return pb.ProbeReply(payload=bytes(request.reply_bytes), received_unix_ns=received, sent_unix_ns=time.time_ns())


@asynccontextmanager
async def listening(
    coordinator: Coordinator, address: str, credentials: Credentials | None, keepalive: float
) -> AsyncIterator[int]:
    """Serve a run's clients for the duration of a ``with`` block, which receives the port.

    Parameters
    ----------
    coordinator
        Coordinator of the run.
    address
        Address ``host:port``; port 0 takes a free one.
    credentials
        Credentials of the server; ``None``: no TLS.
    keepalive
        Seconds between keepalive pings.

    Raises
    ------
    SettingsError
        If the limit of open files is too low for the run's clients.
    UnreachableError
        If the server cannot listen on the address.
    """
    limits = coordinator.limits
    connections = open_files.connections(limits.max_connections, coordinator.least_clients, address.rpartition(":")[0])
    folder = None if credentials is None else credentials.folder
    revocations = None if folder is None else Revocations(folder)
    revocation_check = RevocationCheck(revocations)
    service = Service(
        coordinator,
        secure=credentials is not None,
        limits=limits,
        revocation_check=revocation_check,
        note=coordinator.disclosures.head,
    )
    server = grpc.aio.server(
        interceptors=(service.interceptor(),),
        options=(
            *options(keepalive),
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.max_concurrent_streams", limits.max_calls_per_client),
            ("grpc.server_handshake_timeout_ms", int(limits.handshake_timeout * 1000)),
            ("grpc.max_connection_idle_ms", int(limits.request_timeout * 1000)),
        ),
        maximum_concurrent_rpcs=limits.max_calls,
    )
    server.add_generic_rpc_handlers((service.handler(),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials.for_server())
    except RuntimeError as error:
        log.debug("%s", error)  # gRPC's own error text is useful only for debugging gRPC
        raise UnreachableError(
            f"cannot listen on {address} (expected HOST:PORT), because another program uses the port, or this "
            "machine has no such address; choose another with --listen, or end that program"
        ) from None
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await servicer.set(_NAME, health_pb2.HealthCheckResponse.SERVING)
    watching = asyncio.create_task(revocation_check.watch())
    try:
        yield port
    finally:
        watching.cancel()
        await servicer.enter_graceful_shutdown()
        await server.stop(grace=1.0)


async def serve(
    coordinator: Coordinator, address: str, credentials: Credentials | None, on_listening: Callable[[int], None]
) -> Summary:
    """Listen for clients, conduct a run, and return its summary after the farewells to the clients.

    Parameters
    ----------
    coordinator
        Coordinator of the run.
    address
        Address ``host:port``; port 0 takes a free one.
    credentials
        Credentials of the server; ``None``: no TLS.
    on_listening
        Function that is called with the port when clients can connect.

    Raises
    ------
    SettingsError, UnreachableError
        See :func:`listening`.
    FenchelError
        If the run fails (:meth:`fenchel.server.coordinator.Coordinator.run`).
    """
    keepalive = coordinator.settings.network.keepalive
    folder = None if credentials is None else credentials.folder
    keep_freed_memory(2 * KEPT_BYTES)  # memory for models and frames of a round, in addition to the buffers of replies
    with one_thread():
        async with listening(coordinator, address, credentials, keepalive) as port:
            on_listening(port)
            try:
                return await coordinator.run(lambda certificate: check_not_revoked(certificate, folder))
            finally:
                await coordinator.farewells()
