"""A stored file is the old one or the new one, whole, or a CheckpointError says what is wrong."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import CheckpointError, StorageError
from fenchel.common.storage import store
from fenchel.common.wire.values import SparseVector, Value
from tests.messages import raises

VALUES: dict[str, Value] = {
    "model": np.arange(6.0).reshape(2, 3),
    "thin": SparseVector(np.array([1, 1000]), np.array([0.5, 1.5]), 5000),
    "round": 7,
    "text": "so far",
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    store.write(path, VALUES)
    return path


@pytest.mark.parametrize("sync", [False, True])
def test_what_was_written_is_read(tmp_path: Path, sync: bool) -> None:
    store.write(tmp_path / "state", {}, sync=sync)
    assert store.read(tmp_path / "state") == {}
    store.write(tmp_path / "state", VALUES, sync=sync)
    back = store.read(tmp_path / "state")
    assert back["round"] == 7
    assert back["text"] == "so far"
    np.testing.assert_array_equal(back["model"], VALUES["model"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_no_file_and_one_cut_at_any_byte_or_with_one_more_are_refused(written: Path) -> None:
    whole = written.read_bytes()
    for damaged in (*(whole[:length] for length in range(len(whole))), whole + b"\0"):
        written.write_bytes(damaged)
        with raises(CheckpointError, file="state"):
            store.read(written)
    for nothing in (written.with_name("nothing"), written.parent, Path(os.devnull)):
        with raises(CheckpointError):
            store.read(nothing)


@given(data=st.data())
def test_a_file_with_any_byte_changed_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "state"
    store.write(path, VALUES)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with raises(CheckpointError, file="state"):
        store.read(path)


def test_a_write_that_breaks_off_leaves_the_old_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with raises(StorageError, file="state"):
        store.write(written, {"round": 8})
    monkeypatch.undo()
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert store.read(written)["round"] == 7
    store.write(written, {"round": 9})
    assert store.read(written) == {"round": 9}


def test_the_file_before_is_kept_under_its_own_name(tmp_path: Path) -> None:
    latest, previous = tmp_path / "latest", tmp_path / "previous"
    for number in range(4):
        store.write(latest, {"round": number}, previous=previous)
        assert store.read(latest) == {"round": number}
        assert previous.exists() == (number > 0)
        if number:
            assert store.read(previous) == {"round": number - 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "previous"]


def test_only_its_owner_can_read_a_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.write(tmp_path / "state", VALUES)
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_a_private_folder_and_all_that_are_made_for_it_are_its_owners(tmp_path: Path, mask: int) -> None:
    (there := tmp_path / "there").mkdir(mode=0o755)
    rights = there.stat().st_mode
    before = os.umask(mask)
    try:
        for _ in range(2):
            store.make_private_folder(there / "state" / "run" / "client")
    finally:
        os.umask(before)
    made = [path for path in there.rglob("*") if path.is_dir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3
    assert there.stat().st_mode == rights, "it may be for others, too"


def test_a_disk_without_room_is_told_and_nothing_is_left_behind(written: Path) -> None:
    """The limit on the size of files stands in for a full disk: the same call fails, in the middle of the file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with raises(StorageError):
            store.write(written, {"model": np.zeros(100_000)}, previous=written.with_name("previous"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert store.read(written)["round"] == 7


def test_whose_disk_it_is_and_what_is_started_again_is_told(tmp_path: Path) -> None:
    owners: tuple[store.Owner, ...] = ("server", "client")
    for owner in owners:
        with raises(StorageError, source=tmp_path / "gone" / "state"):
            store.write_content(tmp_path / "gone" / "state", store.Content.of(VALUES), owner=owner)


def test_a_folder_is_settled_with_all_above_it_up_to_the_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost without it is shown by tests/faults/test_power.py."""
    settled: list[Path] = []

    def sync(folder: Path) -> None:
        settled.append(folder)
        if folder == tmp_path.parent:
            raise PermissionError(13, "a folder of somebody else's")

    monkeypatch.setattr(store, "_sync_folder", sync)
    (folder := tmp_path / "runs" / "run").mkdir(parents=True)
    store.settle(folder)
    assert settled[:4] == [folder, folder.parent, tmp_path, tmp_path.parent]
    assert settled[-1].is_mount()
    assert not any(each.is_mount() for each in settled[:-1])


def test_a_disk_that_does_not_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    store.write(tmp_path / "state", {"round": 7}, previous=tmp_path / "previous", sync=True)
    monkeypatch.setattr(os, "fsync", broken)
    with raises(StorageError, file="state"):
        store.write(tmp_path / "state", {"round": 8}, previous=tmp_path / "previous", sync=True)
    assert store.read(tmp_path / "state") == {"round": 7}
    with raises(StorageError, file="new"):
        store.write(tmp_path / "new", {"round": 8}, previous=tmp_path / "previous", sync=True)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
