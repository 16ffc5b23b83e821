"""What a person is told of a run that ends early: what is saved, and how to go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fenchel.common.errors import FenchelError, RunStoppedError, SettingsError, StorageError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import KEY, open_to_others
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.cli.client import _identities
from fenchel.deploy.cli.conduct import conducted
from tests.messages import raises


def ended(folder: RunFolder, how: BaseException) -> None:
    with conducted(folder):
        raise how


@pytest.mark.parametrize("how", [KeyboardInterrupt(), asyncio.CancelledError(), RunStoppedError("too few")])
def test_a_run_with_a_checkpoint_says_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: BaseException
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.checkpoint.write_bytes(b"saved")
    folder.summary.write_text("{}")
    with pytest.raises(type(how)):
        ended(folder, how)
    assert f"go on with --resume {folder.path}" in capsys.readouterr().err
    assert folder.path.exists()


@pytest.mark.parametrize("how", [KeyboardInterrupt(), RunStoppedError("nobody came")])
def test_a_run_without_one_promises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: BaseException
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    with pytest.raises(type(how)):
        ended(folder, how)
    assert "--resume" not in capsys.readouterr().err
    assert folder.path.exists() != isinstance(how, FenchelError)


@pytest.mark.parametrize("saved", ["checkpoint", "previous_checkpoint"])
def test_a_full_disk_takes_no_folder_away_that_has_a_checkpoint(tmp_path: Path, saved: str) -> None:
    """On a full disk the summary is missing, and the checkpoint is all that there is."""
    folder = RunFolder.create(tmp_path, "run")
    checkpoint: Path = getattr(folder, saved)
    checkpoint.write_bytes(b"saved")
    with raises(StorageError):
        ended(folder, StorageError("no room"))
    assert checkpoint.exists()


def test_a_certificate_and_another_name_do_not_go_together(tmp_path: Path) -> None:
    make_all(tmp_path, ["localhost"], ["north", "south"])
    assert list(_identities(tmp_path / "north", None, None, 0, "north")) == ["north"]
    with raises(SettingsError, key="--name south"):
        _identities(tmp_path / "north", None, None, 0, "south")


def test_a_key_that_others_can_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_all(tmp_path, ["localhost"], ["north"])
    _identities(tmp_path / "north", None, None, 0, None)
    assert capsys.readouterr().err == ""
    (tmp_path / "north" / KEY).chmod(0o640)
    _identities(tmp_path / "north", None, None, 0, None)
    assert "chmod 600 key.pem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "owner", "user", "is_open"),
    [
        (0o440, 0, 1000, False),  # as a container has it from Kubernetes
        (0o440, 0, 0, True),
        (0o440, 1000, 1000, True),
        (0o460, 0, 1000, True),
        (0o444, 0, 1000, True),
        (0o600, 1000, 1000, False),
    ],
)
def test_a_key_of_roots_may_be_given_to_a_user_by_its_group(mode: int, owner: int, user: int, is_open: bool) -> None:
    assert open_to_others(os.stat_result((mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0)), user) == is_open
