"""A run's folder says what the server and each client computed with, and its log where these differ."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from fenchel.client.session import Session
from fenchel.common.environment import SERVER, Environment
from fenchel.common.storage.run_folder import RunFolder
from fenchel.proto import fenchel_pb2 as pb
from fenchel.report.run import Run
from fenchel.testing import Faults, Federation
from tests.conftest import MakeSettings

CLIENTS = ("client-000", "client-001", "client-002")


@pytest.fixture
def federation(make_settings: MakeSettings, tmp_path: Path) -> Federation:
    settings = make_settings(rounds=6)
    folder = RunFolder.create(tmp_path, "small")
    folder.settings.write_text(settings.to_yaml())
    return Federation(settings, folder)


def test_a_run_records_the_environment_of_every_participant(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        federation.run()
    record = Run(federation.folder.path).environments
    assert list(record.latest) == [SERVER, *CLIENTS]
    assert len(set(record.latest.values())) == 1
    assert not record.warnings
    assert "environment" not in caplog.text


def test_one_client_with_another_kernel_is_named_in_log_and_report(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hello = Session.hello

    def elsewhere(self: Session) -> pb.Hello:
        told = hello(self)
        if self.client == "client-001":
            told.environment.kernel = "Another"
        return told

    monkeypatch.setattr(Session, "hello", elsewhere)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        federation.run()
    run = Run(federation.folder.path)
    assert {name for name, each in run.environments.latest.items() if each.kernel == "Another"} == {"client-001"}
    lines = [each.getMessage() for each in caplog.records if "environments" in each.getMessage()]
    assert len(lines) == 1
    assert "Another (client-001)" in lines[0]
    assert any("Another (client-001)" in warning for warning in run.warnings)


def test_an_older_client_that_reports_nothing_is_taken_and_recorded_as_unknown(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = Session.hello

    def older(self: Session) -> pb.Hello:
        told = hello(self)
        told.ClearField("environment")
        return told

    monkeypatch.setattr(Session, "hello", older)
    federation.run()
    latest = Run(federation.folder.path).environments.latest
    assert all(latest[name] == Environment() for name in CLIENTS)
    assert latest[SERVER] == Environment.current()


def test_a_server_that_is_resumed_on_another_processor_says_so(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes = iter(["First", "Second"])
    current, live = Environment.current, Federation._life

    async def life(self: Federation, *arguments: object) -> None:
        kernel = next(processes)
        monkeypatch.setattr(Environment, "current", lambda: replace(current(), kernel=kernel))
        self.workers.clear()  # the clients' processes move, too
        await live(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Federation, "_life", life)
    federation.faults = Faults(random.Random(1), kills=1, frames=30)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        federation.run()
    assert federation.killed == 1
    changes = Run(federation.folder.path).environments.changes
    assert {change.participant for change in changes} == {SERVER, *CLIENTS}
    assert {(change.before, change.after) for change in changes} == {("First", "Second")}
    assert "the server computes with kernel Second from round" in caplog.text
