"""The words of ``fenchel client`` that say what its data file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fenchel.client.local_data import OwnFile
from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.main import application

WORDS = ["client", "localhost:1", "--insecure", "--name", "north"]


@pytest.fixture
def app() -> typer.Typer:
    made = application()
    return made


def test_the_column_of_identifiers_needs_a_file(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, [*WORDS, "--id", "patient"])
    assert isinstance(result.exception, SettingsError)
    assert "give the file with --data FILE" in str(result.exception)


def test_the_client_command_passes_the_column_of_identifiers_on(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    participants: list[Any] = []

    async def host(given: list[Any], **_: Any) -> list[Any]:
        participants.extend(given)
        return []

    monkeypatch.setattr("fenchel.client.client_process.host", host)
    words = ["--data", str(tmp_path / "x.csv"), "--label", "outcome", "--id", "patient"]
    result = CliRunner().invoke(app, [*WORDS, *words])
    assert result.exception is None
    (participant,) = participants
    assert participant.local_data.own == OwnFile(tmp_path / "x.csv", "outcome", "patient")


@pytest.mark.parametrize(("words", "most"), [([], None), (["--max-journal-bytes", "5000000"], 5_000_000)])
def test_the_client_command_passes_the_room_for_journals_on(
    words: list[str], most: int | None, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    participants: list[Any] = []

    async def host(given: list[Any], **_: Any) -> list[Any]:
        participants.extend(given)
        return []

    monkeypatch.setattr("fenchel.client.client_process.host", host)
    assert CliRunner().invoke(app, [*WORDS, *words]).exception is None
    (participant,) = participants
    assert participant.trust_limits.journal_bytes == most
