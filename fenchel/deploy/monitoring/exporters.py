"""Telemetry exporters of a server, opened by commands: dashboard, Prometheus, OpenTelemetry, experiment trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.telemetry.tracing import endpoint, tracing
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.scraping import EXPOSED, scraped
from fenchel.server.disclosure.exporters import ExporterEntry
from fenchel.server.telemetry.observer import Observer, Observers, OngoingRun


@dataclass(frozen=True)
class MonitoringOptions:
    """Telemetry exporters requested on the command line.

    Attributes
    ----------
    dashboard
        True to serve the dashboard.
    dashboard_at
        Address of the dashboard; ``None`` for a default address that only this machine can reach.
    metrics_at
        Address of the Prometheus metrics; ``None`` for no metrics.
    tracked
        Names of the experiment trackers.
    """

    dashboard: bool = False
    dashboard_at: Address | None = None
    metrics_at: Address | None = None
    tracked: Sequence[str] = ()

    @classmethod
    def parse(
        cls, dashboard: bool, dashboard_at: str | None, metrics: str | None, track: Sequence[str] | None = None
    ) -> MonitoringOptions:
        """Parse the options of the command line, where ``--dashboard-at`` implies ``--dashboard``.

        Raises
        ------
        SettingsError
            If a tracker is unknown, or an address is invalid.
        """
        from fenchel.trackers import TRACKERS

        for name in track or ():
            if name not in TRACKERS:
                raise SettingsError(f"{name!r} is not a tracker; use one of {', '.join(TRACKERS)}", key="--track")
        return cls(
            dashboard or dashboard_at is not None,
            None if dashboard_at is None else Address.parse(dashboard_at, "--dashboard-at"),
            None if metrics is None else Address.parse(metrics, "--metrics"),
            tuple(dict.fromkeys(track or ())),
        )


@contextmanager
def watching(
    folder: RunFolder,
    settings: RunSettings,
    exporters: MonitoringOptions,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Observers]:
    """Open the exporters of a server for the duration of a ``with`` block.

    Parameters
    ----------
    say, warn
        Callbacks for the addresses of the exporters, and for warnings that other machines can read them.

    Yields
    ------
    Observers
        Observers for the run.
    """
    shown: list[ExporterEntry] = []
    observers: list[Observer] = []
    with ExitStack() as stack:
        if (traces := tracing("fenchel-server")) is not None:
            from fenchel.server.telemetry.tracing import ServerTraces

            observers.append(stack.enter_context(ServerTraces(traces, folder.id)))
            shown.append(ExporterEntry("traces", endpoint()))
        if exporters.metrics_at is not None:
            from fenchel.server.telemetry.metrics import ServerMetrics

            counted = ServerMetrics(folder.id, settings)
            observers.append(counted)
            address = stack.enter_context(scraped(exporters.metrics_at, counted.exposition.text, say, warn))
            shown.append(ExporterEntry("metrics", address))
        if exporters.dashboard:
            from fenchel.deploy.monitoring.dashboard import Dashboard

            page = stack.enter_context(Dashboard(folder, settings.rounds, exporters.dashboard_at))
            say(f"dashboard   {page.url}")
            if not page.is_private:
                warn(EXPOSED.format(address=page.url, what="this run's figures, settings and names of clients"))
            observers.append(page)
            shown.append(ExporterEntry("dashboard", page.url))
        for name in exporters.tracked:
            from fenchel.trackers import TRACKERS

            observers.append(TRACKERS[name]())
        if shown:
            observers.append(_Accounted(shown))
        yield Observers(*observers)


class _Accounted(Observer):
    """Observer that adds the exporters to the disclosure record of a run."""

    def __init__(self, shown: Sequence[ExporterEntry]) -> None:
        self._shown = shown

    def begun(self, run: OngoingRun) -> None:
        run.disclosures.shown(*self._shown)
