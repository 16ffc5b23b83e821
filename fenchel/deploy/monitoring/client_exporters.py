"""Telemetry exporters of a client process, opened by commands: Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fenchel.client.observer import ClientObserver
from fenchel.common.telemetry.tracing import tracing
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.scraping import scraped


@contextmanager
def watching_clients(
    metrics_at: Address | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[ClientObserver]:
    """Open the exporters of a client process for a ``with`` block, with callbacks for addresses and warnings."""
    observer = ClientObserver()
    with ExitStack() as stack:
        if (traces := tracing("fenchel-client")) is not None:
            from fenchel.client.tracing import ClientTraces

            observer = observer.beside(stack.enter_context(ClientTraces(traces)).observer())
        if metrics_at is not None:
            from fenchel.client.metrics import ClientMetrics

            counted = ClientMetrics()
            observer = observer.beside(counted.observer())
            stack.enter_context(scraped(metrics_at, counted.exposition.text, say, warn))
        yield observer
