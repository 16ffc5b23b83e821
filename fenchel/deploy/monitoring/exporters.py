"""Who watches a run: the terminal always; the live page, Prometheus and OpenTelemetry where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.telemetry.tracing import endpoint, tracing
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.web import HttpResponse, WebServer
from fenchel.server.disclosure.exporters import Exporter
from fenchel.server.telemetry.observer import RunObserver

if TYPE_CHECKING:
    from fenchel.client.observer import ClientObserver

_WARNING = (
    "whoever can reach {address} can read {what}: there is no password and no encryption. Listen on 127.0.0.1, or let "
    "a firewall decide who reaches it"
)


@dataclass(frozen=True)
class Exporters:
    """What the command line asks for."""

    dashboard: bool = False  # whether the live page is served
    dashboard_at: Address | None = None  # where; ``None``: where nobody but this machine reaches it
    metrics_at: Address | None = None  # where Prometheus finds the metrics; ``None``: nowhere

    @classmethod
    def parse(cls, dashboard: bool, dashboard_at: str | None, metrics: str | None) -> Exporters:
        """Read the words of the command line; ``--dashboard-at`` alone is enough."""
        return cls(
            dashboard or dashboard_at is not None,
            None if dashboard_at is None else Address.parse(dashboard_at, "--dashboard-at"),
            None if metrics is None else Address.parse(metrics, "--metrics"),
        )


@contextmanager
def watching(
    folder: RunFolder,
    settings: RunSettings,
    exporters: Exporters,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[RunObserver]:
    """Open the exporters of a server for the duration of a ``with`` block.

    say, warn: told where they are, and who can read them.
    """
    shown: list[Exporter] = []
    observer = RunObserver()
    with ExitStack() as stack:
        if (traces := tracing("fenchel-server")) is not None:
            from fenchel.server.telemetry.tracing import ServerTraces

            observer = observer.beside(stack.enter_context(ServerTraces(traces, folder.id)).observer())
            shown.append(Exporter("traces", endpoint()))
        if exporters.metrics_at is not None:
            from fenchel.server.telemetry.metrics import ServerMetrics

            counted = ServerMetrics(folder.id, settings)
            observer = observer.beside(counted.observer())
            address = stack.enter_context(_scraped(exporters.metrics_at, counted.exposition.text, say, warn))
            shown.append(Exporter("metrics", address))
        if exporters.dashboard:
            from fenchel.deploy.monitoring.dashboard import Dashboard

            page = stack.enter_context(Dashboard(folder, settings.rounds, exporters.dashboard_at))
            say(f"live page   {page.url}")
            if not page.is_private:
                warn(_WARNING.format(address=page.url, what="this run's figures, settings and names of clients"))
            observer = observer.beside(page.observer())
            shown.append(Exporter("live page", page.url))
        if shown:
            accounted = RunObserver(conducting=lambda conductor: conductor.disclosures.shown(*shown))
            observer = observer.beside(accounted)
        yield observer


@contextmanager
def watching_clients(
    metrics_at: Address | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[ClientObserver]:
    """Open the exporters of a process of clients for the duration of a ``with`` block; as :func:`watching`."""
    from fenchel.client.observer import ClientObserver

    observer = ClientObserver()
    with ExitStack() as stack:
        if (traces := tracing("fenchel-client")) is not None:
            from fenchel.client.tracing import ClientTraces

            observer = observer.beside(stack.enter_context(ClientTraces(traces)).observer())
        if metrics_at is not None:
            from fenchel.client.metrics import ClientMetrics

            counted = ClientMetrics()
            observer = observer.beside(counted.observer())
            stack.enter_context(_scraped(metrics_at, counted.exposition.text, say, warn))
        yield observer


@contextmanager
def _scraped(
    at: Address, text: Callable[[], bytes], say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[str]:
    """Serve metrics; yield where."""
    from fenchel.common.telemetry.exposition import KIND

    with WebServer(at, {"/metrics": lambda: HttpResponse(KIND, text())}) as server:
        address = f"http://{server.address}/metrics"
        say(f"metrics     {address}")
        if not server.address.is_loopback:
            warn(_WARNING.format(address=server.address, what="the metrics"))
        yield address
