"""OpenTelemetry spans of clients: one for each stream to the server, and one for each instruction.

The parent of an instruction's span is the server's span of the request. If the server records no spans, the parent is
the span of the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenchel.client.observer import ClientObserver
from fenchel.common.storage.call_columns import CLIENT_STAGES
from fenchel.common.telemetry.tracing import Tracing
from fenchel.proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_PARTS = tuple(stage.timing for stage in CLIENT_STAGES)


class ClientTraces(ClientObserver):
    """Observer that records spans of all clients in a process, to be used in a ``with`` block.

    Parameters
    ----------
    tracing
        Exporter of the spans.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._streams: dict[str, Span] = {}

    def __enter__(self) -> ClientTraces:
        return self

    def __exit__(self, *error: object) -> None:
        for client in list(self._streams):
            self.closed(client)
        self._tracing.close()

    def opening(self, client: str) -> str:
        """Begin the span of a stream, and return its trace context."""
        span = self._tracing.tracer.start_span("stream", attributes={"fenchel.client": client})
        self._streams[client] = span
        return self._tracing.traceparent(span)

    def closed(self, client: str) -> None:
        """End the span of a stream."""
        span = self._streams.pop(client, None)
        if span is not None:
            span.end()

    def answered(self, client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
        """Record the span of an instruction."""
        timing = reply.timing
        span = self._tracing.tracer.start_span(
            f"instruction {instruction.phase}",
            self._context(client, instruction),
            self._tracing.kind("server"),
            attributes={
                "fenchel.client": client,
                "fenchel.phase": instruction.phase,
                "fenchel.round": instruction.round,
                "fenchel.bytes_down": instruction.payload.body_bytes,
                "fenchel.bytes_up": size,
                **{f"fenchel.{part}_s": getattr(timing, f"{part}_ns") / 1e9 for part in _PARTS},
            },
            start_time=timing.received_unix_ns - timing.receive_ns,
        )
        if reply.failure:
            # the trace omits the cause, which may contain data
            self._tracing.fail(span, "the algorithm could not answer")
        span.end(timing.received_unix_ns + timing.answer_ns)

    def _context(self, client: str, instruction: pb.Instruction) -> Context | None:
        """Return the parent of the instruction's span: the server's request or, without server traces, the stream."""
        if instruction.traceparent:
            return self._tracing.context(instruction.traceparent)
        stream = self._streams.get(client)
        return None if stream is None else self._tracing.within(stream)
