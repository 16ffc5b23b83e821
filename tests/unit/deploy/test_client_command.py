"""The words of ``fenchel client`` that say what its data file holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fenchel.client.local_data import OwnFile
from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.main import application

WORDS = ["client", "localhost:1", "--insecure", "--name", "north"]


def test_the_column_of_identifiers_needs_a_file() -> None:
    result = CliRunner().invoke(application(), [*WORDS, "--id", "patient"])
    assert isinstance(result.exception, SettingsError)
    assert result.exception.key == "--id"


def test_the_client_command_passes_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    participants: list[Any] = []

    async def host(given: list[Any], **_: Any) -> list[Any]:
        participants.extend(given)
        return []

    monkeypatch.setattr("fenchel.client.client_process.host", host)
    words = ["--data", str(tmp_path / "x.csv"), "--label", "outcome", "--id", "patient"]
    for more in ([], [*words, "--max-journal-bytes", "5000000"]):
        assert CliRunner().invoke(application(), [*WORDS, *more]).exception is None
    plain, own = participants
    assert plain.trust_limits.journal_bytes is None
    assert own.trust_limits.journal_bytes == 5_000_000
    assert own.local_data == OwnFile(tmp_path / "x.csv", "outcome", "patient")


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("completed", [True, False])
def test_a_quiet_client_tells_only_of_a_run_that_ended_early(
    quiet: bool, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def host(*_: Any, on_event: Callable[[str], None], **__: Any) -> list[Any]:
        on_event("dialling")
        return [SimpleNamespace(completed=completed, reason="no clients")]

    monkeypatch.setattr("fenchel.client.client_process.host", host)
    done = CliRunner().invoke(application(), [*WORDS, *(["--quiet"] if quiet else [])])
    assert done.exit_code == 0
    assert ("dialling" in done.stderr) != quiet
    assert ("no clients" in done.stderr) != completed
    assert (done.stderr == "") == (quiet and completed)
