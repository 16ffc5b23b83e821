"""The admission interceptor, which applies the revocation check and rate limits to a call before reading its message.

The interceptor handles every call: those of Fenchel's own service, of gRPC health and reflection, and of unknown
methods. gRPC invokes a unary handler only when its message is complete, so a call whose message never ends would stay
open without being counted. Unary handlers are therefore registered as streaming ones, which are the same on the wire.
They are invoked when the head of the call has arrived, and the message is read after the call was admitted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from fenchel.common.errors import RevokedError
from fenchel.common.tls.roles import Role, role_of
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.rate_limit import CrowdedError, RateLimiter, TokenBucket
from fenchel.server.disclosure.entries import Direction
from fenchel.server.transport.revocation_check import RevocationCheck, certificate_of

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # grpc.RpcMethodHandler is generic only in type stubs
Note: TypeAlias = Callable[[Direction, Message], None]


class RefusedError(Exception):
    """Error that refuses a call. Its text gives the reason and the remedy.

    Parameters
    ----------
    code
        gRPC status with which the call ends.
    reason
        Text for the caller.
    """

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def certified(context: _Context) -> str:
    """Return the name in the caller's certificate; empty without TLS."""
    names = list(context.auth_context().get("x509_common_name", []))
    return names[0].decode(errors="replace") if names else ""


def who_calls(context: _Context) -> str:
    """Return the name in the caller's certificate, or the caller's address without TLS."""
    return certified(context) or context.peer()


def counted_as(context: _Context) -> str:
    """Return the name under which a caller's calls are counted, which distinguishes monitors from clients."""
    client = who_calls(context)
    return f"{client} (monitor)" if _is_monitor(context) else client


def noted(handler: _Handler, note: Note) -> _Handler:
    """Return a handler that also calls ``note`` with each message, in both directions."""
    read, write = _codec(handler)

    def heard(data: bytes) -> Message:
        message = read(data)
        note("up", message)
        return message

    def said(message: Message) -> bytes:
        note("down", message)
        return write(message)

    return _made(_behaviour(handler), handler.request_streaming, handler.response_streaming, heard, said)


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """gRPC interceptor that admits or refuses every call.

    Parameters
    ----------
    own
        Name of Fenchel's service, which records its messages itself.
    revocation_check
        Check for revoked certificates.
    rate_limiter
        Rate limiter of calls.
    limits
        Limits on the server's resources.
    tell
        Function that logs a caller and the problem with its call.
    note
        Function that records a message and its direction.
    """

    def __init__(
        self,
        *,
        own: str,
        revocation_check: RevocationCheck,
        rate_limiter: RateLimiter,
        limits: Limits,
        tell: Callable[[str, str], None],
        note: Note,
    ) -> None:
        self._own = f"/{own}/"
        self._revocation_check = revocation_check
        self._rate_limiter = rate_limiter
        self._limits = limits
        self._tell = tell
        self._note = note

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the handler of a call, preceded by the admission of the call."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details) or _unknown(method)
        is_own, is_probe = method.startswith(self._own), method == f"{self._own}Probe"
        if not is_own and handler.request_deserializer is not None:
            handler = noted(handler, self._note)
        behaviour, streams = _behaviour(handler), handler.request_streaming

        async def admitted(requests: AsyncIterator[Any], context: _Context) -> Any:
            async with self._passed(context, is_probe):
                if not streams:
                    request = await self._only_message(context)
                else:
                    request = requests if is_own else self._paced(requests)
                answer = behaviour(request, context)
                if not inspect.isasyncgen(answer):
                    return await answer
                async for message in answer:
                    await context.write(message)

        return _made(
            admitted, True, handler.response_streaming, handler.request_deserializer, handler.response_serializer
        )

    @asynccontextmanager
    async def _passed(self, context: _Context, is_probe: bool) -> AsyncIterator[None]:
        client = who_calls(context)
        revoked = self._revocation_check.found(context)
        # Count calls with a revoked certificate separately: they must not use up the rate limit of a client with this
        # name and a new certificate.
        counted = f"{client} (revoked)" if revoked else counted_as(context)
        try:
            async with self._rate_limiter.passed(counted, probe=is_probe):
                if revoked:
                    raise revoked
                with self._revocation_check.watching(context):
                    yield
        except RevokedError as error:
            self._tell(client, f"{'is refused' if revoked else 'its stream is ended'}: {error}")
            code, reason = grpc.StatusCode.PERMISSION_DENIED, str(error)
        except CrowdedError as error:
            self._tell(client, f"has {self._limits.max_calls_per_client} open calls, and further ones are rejected")
            code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        except RefusedError as error:
            self._tell(client, f"is refused: {error}")
            code, reason = error.code, str(error)
        else:
            return
        await self._rate_limiter.refusing(counted)
        await context.abort(code, reason)

    async def _only_message(self, context: _Context) -> Any:
        """Return the message of a unary call. Raise ``RefusedError`` if it is late, missing or not the only one."""
        limit = self._limits.request_timeout
        try:
            async with asyncio.timeout(limit):
                message = await context.read()
                if message is not grpc.aio.EOF and await context.read() is grpc.aio.EOF:
                    return message
        except TimeoutError:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the message of this call is incomplete after {limit:g} s, so the call is closed",
            ) from None
        raise RefusedError(
            grpc.StatusCode.INVALID_ARGUMENT, "the call has no message, or more than one; expected exactly one"
        )

    async def _paced(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        pace = TokenBucket(self._limits.calls_per_second, self._limits.calls_at_once)
        async for request in requests:
            await asyncio.sleep(pace.delay())
            yield request


def _is_monitor(context: _Context) -> bool:
    certificate = certificate_of(context)
    return bool(certificate) and role_of(certificate) is not Role.PARTICIPANT


def _unknown(method: str) -> _Handler:
    """Return a handler that refuses calls of an unknown method."""

    async def refuse(requests: AsyncIterator[bytes], context: _Context) -> None:
        raise RefusedError(grpc.StatusCode.UNIMPLEMENTED, f"this server has no method {method:.200}")

    return grpc.stream_stream_rpc_method_handler(refuse)


def _behaviour(handler: _Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)


def _codec(handler: _Handler) -> tuple[Callable[[bytes], Message], Callable[[Message], bytes]]:
    read, write = handler.request_deserializer, handler.response_serializer
    assert read is not None
    assert write is not None
    return read, write


def _made(
    behaviour: Callable[..., Any],
    requests_stream: bool,
    responses_stream: bool,
    read: Callable[..., Any] | None,
    write: Callable[..., Any] | None,
) -> _Handler:
    """Return a handler of one of gRPC's four kinds."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return makers[requests_stream, responses_stream](behaviour, read, write)
