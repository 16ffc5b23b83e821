"""How much a client's journals may take: what it was told, or what no honest run takes and no disk is filled by."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.client.disk_quota import DiskQuota
from fenchel.common.errors import StorageError
from tests.messages import raises

BLOCK = 4096
GIB = 1 << 30


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How much is free on the disk."""
    told = {"free": 1 << 60}
    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(1 << 61, 1 << 60, told["free"]))
    return told


def entries(room: DiskQuota, size: int, folder: Path | None = Path("journal"), most: int = 30_000) -> int:
    """Return how many entries of a size a new journal can have."""
    room.open(folder)
    for count in range(most):
        try:
            room.admit(folder, size)
        except StorageError:
            return count
        room.take(folder, size)
    return most


@pytest.mark.parametrize("size", [1 << 20, 64 << 20, 1600 << 20])
@pytest.mark.usefixtures("disk")
def test_there_is_room_for_as_many_entries_of_any_size(size: int) -> None:
    assert entries(DiskQuota(), size) == 10_000


@pytest.mark.usefixtures("disk")
def test_there_are_gibibytes_for_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entries(DiskQuota(), 100) == 30_000
    room = DiskQuota()
    room.open(None)
    room.take(None, 4 * GIB - BLOCK)
    room.admit(None, BLOCK)
    monkeypatch.setattr("fenchel.client.disk_quota.ENTRIES", 1)
    with raises(StorageError):
        room.admit(None, BLOCK + 1)


def test_a_tenth_of_what_is_free_without_journals_stays_free(disk: dict[str, int]) -> None:
    room, folder = DiskQuota(), Path("journal")
    room.open(folder)
    for taken in range(90):
        disk["free"] = (100 - taken) * BLOCK
        room.admit(folder, BLOCK)
        room.take(folder, BLOCK)
    disk["free"] = 10 * BLOCK
    with raises(StorageError):
        room.admit(folder, 1)
    disk["free"] = 12 * BLOCK  # somebody has made room
    room.admit(folder, 1)


def test_journals_of_other_runs_take_from_the_same_room() -> None:
    room = DiskQuota(10 * BLOCK)
    assert entries(room, BLOCK, Path("first")) == 10
    assert entries(room, BLOCK, Path("second")) == 0
    room.give_back(Path("first"), BLOCK)
    assert entries(room, BLOCK, Path("second")) == 1
    assert entries(room, BLOCK, Path("first")) == 9


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from([None, Path("a"), Path("b")]), st.integers(1, 5 * BLOCK)), max_size=40),
)
def test_no_more_is_taken_than_there_is(blocks: int, wanted: list[tuple[Path | None, int]]) -> None:
    room, taken = DiskQuota(blocks * BLOCK), 0
    for folder in (None, Path("a"), Path("b")):
        room.open(folder)
    for folder, size in wanted:
        takes = -(-size // BLOCK)
        if taken + takes > blocks:
            with raises(StorageError):
                room.admit(folder, size)
        else:
            room.admit(folder, size)
            room.take(folder, size)
            taken += takes
