"""Whoever watches a run from outside: everything that leaves it by its exporters, as bytes."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

_EVERY = 0.2  # seconds


@dataclass
class Onlooker(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans by OTLP, and asks for pages as long as it looks."""

    collector: str = ""  # where spans are sent
    seen: dict[str, set[bytes]] = field(default_factory=dict)  # what was answered, by address
    sent: list[ResourceSpans] = field(default_factory=list)  # by whom, and what

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.sent += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, service: str) -> list[Span]:
        """Return what a service has sent."""
        return [
            span
            for each in self.sent
            if service in [named.value.string_value for named in each.resource.attributes]
            for scope in each.scope_spans
            for span in scope.spans
        ]

    @contextmanager
    def looking(self, addresses: Sequence[str]) -> Iterator[None]:
        """Ask for these pages again and again for the duration of a ``with`` block."""
        ended = threading.Event()

        def look(address: str) -> None:
            while not ended.wait(_EVERY):
                # It is not there yet, or not any more.
                with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
                    self.seen.setdefault(address, set()).add(answer.read())

        threads = [threading.Thread(target=look, args=[address]) for address in addresses]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@contextmanager
def onlooker() -> Iterator[Onlooker]:
    """Open a collector on this machine."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    port = server.add_insecure_port("127.0.0.1:0")
    found = Onlooker(f"http://127.0.0.1:{port}")
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield found
    finally:
        server.stop(0).wait()
