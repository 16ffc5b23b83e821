"""Telemetry exporters of a client process, opened by commands: Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fenchel.client.observer import ClientObserver, ClientObservers
from fenchel.common.telemetry.tracing import tracing
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.scraping import scraped


@contextmanager
def watching_clients(
    metrics_at: Address | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[ClientObserver]:
    """Open the exporters of a client process for a ``with`` block, with callbacks for addresses and warnings."""
    observers: list[ClientObserver] = []
    with ExitStack() as stack:
        if (traces := tracing("fenchel-client")) is not None:
            from fenchel.client.tracing import ClientTraces

            observers.append(stack.enter_context(ClientTraces(traces)))
        if metrics_at is not None:
            from fenchel.client.metrics import ClientMetrics

            metrics = ClientMetrics()
            observers.append(metrics)
            stack.enter_context(scraped(metrics_at, metrics.exposition.text, say, warn))
        yield ClientObservers(*observers)
