"""The trace of a run: a span for the run, child spans for its rounds, and child spans of these for the phases.

Instructions carry the trace context of their phase, so that the clients' spans are children of the phase's span. A
client sends the trace context of its stream in the metadata of its ``Work`` call, and the run's span links to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fenchel.common.storage.round_columns import Row
from fenchel.common.telemetry.tracing import Tracing
from fenchel.fleet.calls import Call
from fenchel.server.telemetry.observer import Observer, OngoingRun

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class ServerTraces(Observer):
    """Observer that makes the spans of a run, for the duration of a ``with`` block.

    Parameters
    ----------
    tracing
        Exporter of the spans.
    run
        Id of the run.
    """

    def __init__(self, tracing: Tracing, run: str) -> None:
        self._tracing = tracing
        self._name = run
        self._run: Span | None = None
        # number and span of the latest round; the span ends when the row of the round is written
        self._round: tuple[int, Span | None] = (0, None)
        self._open: dict[int, Span] = {}
        self._phases: dict[str, Span] = {}

    def __enter__(self) -> ServerTraces:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for span in (*self._phases.values(), *self._open.values(), self._run):
            if span is not None and span.is_recording():
                if kind is not None:
                    # Traces omit the text of the error, which may come from a client.
                    self._tracing.fail(span, kind.__name__)
                span.end()
        self._tracing.close()

    def begun(self, run: OngoingRun) -> None:
        """Start the span of the run."""
        attributes = {"fenchel.run": self._name, "fenchel.algorithm": run.settings.algorithm.name}
        self._run = self._tracing.tracer.start_span("run", attributes=attributes)

    def round_begun(self, t: int) -> None:
        """Start the span of a round."""
        span = self._open[t] = self._start("round", self._run, {"fenchel.round": t})
        self._round = t, span

    def round_ended(self, row: Row) -> None:
        """End the span of a round."""
        span = self._open.pop(int(row["round"]), None)
        if span is not None:
            numbers = {f"fenchel.{name}": float(row[name]) for name in ("counted", "late", "failed", "seconds")}
            span.set_attributes(numbers)
            span.end(round(row["unix"] * 1e9))

    def stream_opened(self, client: str, traceparent: str) -> None:
        """Link the span of the run to the span of a client's stream."""
        if self._run is not None and traceparent:
            self._tracing.link(self._run, traceparent, {"fenchel.client": client})

    def trace_context(self, phase: str, t: int) -> str:
        """Start the span of a phase, and return its W3C trace context; empty if there is none."""
        latest, span = self._round
        above = span if span is not None and latest == t else self._run
        span = self._start(f"phase {phase}", above, {"fenchel.round": t, "fenchel.phase": phase}, "client")
        traceparent = self._tracing.traceparent(span)
        if traceparent:
            self._phases[traceparent] = span
        return traceparent

    def calls(self, calls: Sequence[Call]) -> None:
        """End the spans of the phases of these instructions, each at the time at which its request ended."""
        for call in calls:
            span = self._phases.pop(call.traceparent, None)
            if span is not None:
                over = call.request.ended_ns if call.request is not None else call.queued_ns
                span.end(call.unix_ns(over))

    def _start(self, name: str, above: Span | None, attributes: dict[str, str | int], kind: str = "internal") -> Span:
        context = None if above is None else self._tracing.within(above)
        return self._tracing.tracer.start_span(name, context, self._tracing.kind(kind), attributes=attributes)
