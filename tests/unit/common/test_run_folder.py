"""Folders of new runs."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import pytest

from fenchel.common.errors import StorageError
from fenchel.common.storage.run_folder import RunFolder
from tests.messages import raises


def test_runs_of_one_second_that_draw_the_same_number_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["00aa", "00aa", "00aa", "00bb"])
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn))
    created = [RunFolder.create(tmp_path, "run").id for _ in range(2)]
    assert created == ["20260101-000000-run-00aa", "20260101-000000-run-00bb"]


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "folder")
    for parent in (tmp_path / "file", tmp_path / "nowhere"):
        with raises(StorageError):
            RunFolder.create(parent, "run")
