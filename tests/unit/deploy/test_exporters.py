"""Outlets open where they are asked for, and whoever opens one to others is told so."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fenchel.common.errors import MissingDependencyError, SettingsError, UnreachableError
from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.client_exporters import watching_clients
from fenchel.deploy.monitoring.exporters import MonitoringOptions, watching
from fenchel.deploy.monitoring.web import WebServer
from fenchel.server.telemetry.observer import Observers
from tests.messages import raises

SETTINGS = load(Path("fenchel/experiments/fedavg-digits.yaml"))


class Told:
    """What people were told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def watching(self, folder: Path, exporters: MonitoringOptions) -> AbstractContextManager[Observers]:
        run = RunFolder.create(folder, "watched")
        return watching(run, SETTINGS, exporters, self.said.append, self.warned.append)


def test_nothing_is_opened_unless_it_is_asked_for(tmp_path: Path) -> None:
    told = Told()
    with told.watching(tmp_path, MonitoringOptions.parse(dashboard=False, dashboard_at=None, metrics=None)) as observer:
        assert observer.observers == ()
    assert told.said == told.warned == []


def test_what_only_this_machine_reaches_is_said_without_a_warning(tmp_path: Path) -> None:
    told = Told()
    exporters = MonitoringOptions.parse(dashboard=False, dashboard_at="127.0.0.1:0", metrics="localhost:0")
    with told.watching(tmp_path, exporters):
        metrics, page = (words.split()[-1] for words in told.said)
        with urllib.request.urlopen(metrics) as response:
            assert b"fenchel_rounds_planned" in response.read()
        with urllib.request.urlopen(page + "fleet") as response:
            assert b'"running":true' in response.read()
    assert told.warned == []
    with pytest.raises(OSError):
        urllib.request.urlopen(metrics)


def test_what_others_reach_is_warned_of(tmp_path: Path) -> None:
    told = Told()
    exporters = MonitoringOptions.parse(dashboard=False, dashboard_at="0.0.0.0:0", metrics="0.0.0.0:0")
    with told.watching(tmp_path, exporters):
        assert len(told.warned) == 2
        assert all("without password" in words for words in told.warned)
    with watching_clients(Address("0.0.0.0", 0), told.said.append, told.warned.append):
        assert len(told.warned) == 3


def test_an_address_in_use_stops_the_command_before_a_run_begins(tmp_path: Path) -> None:
    told = Told()
    with (
        WebServer(Address("127.0.0.1", 0), {}) as taken,
        raises(UnreachableError),
        told.watching(tmp_path, MonitoringOptions(metrics_at=taken.address)),
    ):
        pytest.fail("the address was taken")


def test_words_that_are_no_address_are_refused() -> None:
    with raises(SettingsError, key="--dashboard-at"):
        MonitoringOptions.parse(dashboard=True, dashboard_at="everywhere", metrics=None)


@pytest.mark.parametrize(
    ("library", "environment"),
    [("prometheus_client", {}), ("opentelemetry.sdk.trace", {"OTEL_TRACES_EXPORTER": "otlp"})],
)
def test_a_library_that_is_missing_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, environment: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    exporters = MonitoringOptions(metrics_at=Address("127.0.0.1", 0))
    with raises(MissingDependencyError), Told().watching(tmp_path, exporters):
        pytest.fail("there is no library")
