"""Web server of metrics that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.web import HttpResponse, WebServer

EXPOSED = (
    "{what} can be read at {address} by anyone who can reach it, without password and encryption. Listen on "
    "127.0.0.1, or let a firewall decide who reaches it"
)
"""Warning that other machines can read what an exporter serves."""


@contextmanager
def scraped(
    at: Address, text: Callable[[], bytes], say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[str]:
    """Serve metrics for the duration of a ``with`` block, and yield their URL."""
    from fenchel.common.telemetry.exposition import KIND

    with WebServer(at, {"/metrics": lambda: HttpResponse(KIND, text())}) as server:
        address = f"http://{server.address}/metrics"
        say(f"metrics     {address}")
        if not server.address.is_loopback:
            warn(EXPOSED.format(address=server.address, what="the metrics"))
        yield address
