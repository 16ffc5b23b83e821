"""The standard services beside Fenchel's own, gRPC health and reflection: who may call them, and how often.

They tell nothing of a run. But a call is a call: a client whose certificate was revoked gets none, and no client gets
more of them than of any other, or it could use up what all clients have together.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from common.settings.run import Network
from server.disclosed import Direction
from server.gate import CrowdedError, Gate, Pace
from server.guard import Guard, RevokedError

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # no generic at run time
Note: TypeAlias = Callable[[Direction, Message], None]


def who_calls(context: _Context) -> str:
    """Return the name in the caller's certificate; without TLS, its address."""
    names = list(context.auth_context().get("x509_common_name", []))
    return names[0].decode(errors="replace") if names else context.peer()


def noted(handler: _Handler, note: Note) -> _Handler:
    """Return a handler that tells of each message that crosses, in either direction."""
    read, write = _codec(handler)

    def heard(data: bytes) -> Message:
        message = read(data)
        note("up", message)
        return message

    def said(message: Message) -> bytes:
        note("down", message)
        return write(message)

    return _like(handler, _behaviour(handler), heard, said)


class Entrance(grpc.aio.ServerInterceptor):
    """Stands before every call of the standard services.

    Parameters
    ----------
    own
        Name of the service that looks after itself.
    guard, gate
        Those of that service.
    network
        The limits.
    tell
        Told who is refused, and why.
    note
        Told of each message that crosses.
    """

    def __init__(
        self,
        own: str,
        guard: Guard,
        gate: Gate,
        network: Network,
        tell: Callable[[str, str], None],
        note: Note,
    ) -> None:
        self._own = f"/{own}/"
        self._guard = guard
        self._gate = gate
        self._network = network
        self._tell = tell
        self._note = note

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the handler of a call, with this before it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._own):
            return handler
        handler = noted(handler, self._note)
        behaviour, streams = _behaviour(handler), handler.request_streaming

        async def guarded(request: Any, context: _Context) -> Any:
            async with self._passed(context):
                answer = behaviour(self._paced(request) if streams else request, context)
                if not inspect.isasyncgen(answer):
                    return await answer
                async for message in answer:
                    await context.write(message)

        return _like(handler, guarded, *_codec(handler))

    @asynccontextmanager
    async def _passed(self, context: _Context) -> AsyncIterator[None]:
        client = who_calls(context)
        try:
            self._guard.check(context)
            async with self._gate.passed(client):
                with self._guard.watching(context):
                    yield
        except RevokedError as error:
            self._tell(client, f"is refused: {error}")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except CrowdedError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def _paced(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        pace = Pace(self._network.calls_per_second, self._network.calls_at_once)
        async for request in requests:
            await asyncio.sleep(pace.delay())
            yield request


def _behaviour(handler: _Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)


def _codec(handler: _Handler) -> tuple[Callable[[bytes], Message], Callable[[Message], bytes]]:
    read, write = handler.request_deserializer, handler.response_serializer
    assert read is not None
    assert write is not None
    return read, write


def _like(
    handler: _Handler, behaviour: Callable[..., Any], read: Callable[..., Any], write: Callable[..., Any]
) -> _Handler:
    """Return a handler of the same kind."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return makers[handler.request_streaming, handler.response_streaming](behaviour, read, write)
