"""Traces by OpenTelemetry, whose optional library is imported only if the environment enables traces.

``OTEL_TRACES_EXPORTER=otlp`` enables them on server or client. The other standard variables, such as
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME`` and ``OTEL_TRACES_SAMPLER``, set the destination and the
sampling.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fenchel.common.errors import MissingDependencyError, SettingsError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span, SpanKind, Tracer

log = logging.getLogger("fenchel.tracing")

SWITCH = "OTEL_TRACES_EXPORTER"
_KEY = "traceparent"
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
# seconds in place of the library's ten, because the end of a run waits for them if no collector answers
_TIMEOUT = 3.0
_STATUS = re.compile(r"StatusCode\.(\w+)")


class Tracing:
    """Factory of spans, which exports them until it is closed.

    Parameters
    ----------
    provider
        OpenTelemetry's provider, which exports the spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._propagator = TraceContextTextMapPropagator()
        self.tracer: Tracer = provider.get_tracer("fenchel")

    def context(self, traceparent: str) -> Context:
        """Return the context that a received ``traceparent`` text describes, or a new one if the text is invalid."""
        return self._propagator.extract({_KEY: traceparent})

    def within(self, span: Span) -> Context:
        """Return the context for children of a span."""
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(span)

    def traceparent(self, span: Span) -> str:
        """Return a span's context as a W3C ``traceparent`` text, which includes the sampling decision."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self.within(span))
        return carrier.get(_KEY, "")

    def link(self, span: Span, traceparent: str, attributes: Mapping[str, str]) -> None:
        """Link a span to the span that a ``traceparent`` text names, if the text is valid."""
        from opentelemetry.trace import get_current_span

        other = get_current_span(self.context(traceparent)).get_span_context()
        if other.is_valid:
            span.add_link(other, attributes)

    def kind(self, name: str) -> SpanKind:
        """Return OpenTelemetry's kind of span for a name such as ``client``."""
        from opentelemetry.trace import SpanKind

        return SpanKind[name.upper()]

    def fail(self, span: Span, reason: str) -> None:
        """Set the status of a span to failed."""
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, reason))

    def close(self) -> None:
        """Export the remaining spans, and stop the export."""
        self._provider.shutdown()


def endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address to which traces are sent, according to the standard variables."""
    of_traces, of_all = (environment.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("TRACES_ENDPOINT", "ENDPOINT"))
    return of_traces or of_all or "http://localhost:4317"


def tracing(service: str, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return the factory of spans, or ``None`` if the environment does not enable traces.

    Parameters
    ----------
    service
        Service name of this role, unless the environment sets another.

    Raises
    ------
    SettingsError
        If the environment names an exporter other than ``otlp`` or ``none``.
    MissingDependencyError
        If the libraries of OpenTelemetry are not installed.
    """
    wanted = environment.get(SWITCH, "none").strip().lower() or "none"
    if wanted == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if wanted != "otlp":
        raise SettingsError(f"{SWITCH}={wanted} is not supported; use otlp, or none for no traces")
    try:
        timeout = None if any(map(environment.get, _TIMEOUTS)) else _TIMEOUT
        exporter = _exporter(endpoint(environment), timeout)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingDependencyError(
            f"{SWITCH}=otlp needs the libraries of OpenTelemetry; install them with pip install 'fenchel[otel]', "
            "or unset the variable"
        ) from None
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": service}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


class _Heard(logging.Handler):
    """Log handler that keeps the library's latest message. Its presence prevents Python from printing messages."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the status of gRPC if the message has one, else the whole message."""
        message = record.getMessage()
        status = _STATUS.search(message)
        self.words = status[1] if status else message


def _exporter(where: str, timeout: float | None) -> SpanExporter:
    """Return an exporter of spans by OTLP, which logs one warning if spans do not arrive within ``timeout`` seconds.

    ``None`` is the timeout of the environment.
    The library's own messages about each attempt are shown if the root logger has a handler.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    heard = _Heard()
    logging.getLogger("opentelemetry").addHandler(heard)

    class Exporter(OTLPSpanExporter):
        warned = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            if result is not SpanExportResult.SUCCESS and not self.warned:
                self.warned = True
                log.warning(
                    "traces cannot be sent to %s (%s) and are lost; the run continues. Check that a collector "
                    "listens there (OTEL_EXPORTER_OTLP_ENDPOINT). This warning is not repeated",
                    where,
                    heard.words or "no answer",
                )
            return result

    return Exporter(timeout=timeout)
