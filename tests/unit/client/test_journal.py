"""A journal gives back every state that may still be wanted, also to the process after this one."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fenchel.client.disk_quota import DiskQuota
from fenchel.client.journal import Journal
from fenchel.common.arrays import Vector
from fenchel.common.errors import CheckpointError, LostStateError, StorageError
from tests.messages import raises

BLOCK = 4096  # what a small entry takes


@dataclass
class State:
    dual: Vector


@dataclass
class Other:
    weights: Vector


def state(value: float) -> State:
    return State(np.full(2, value))


def value_after(journal: Journal, base: int) -> float:
    return float(journal.state_after(base).dual[0])


@pytest.fixture(params=["memory", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "journal" if request.param == "folder" else None


@pytest.fixture
def journal(folder: Path | None) -> Journal:
    """Three instructions, after which the dual is ten times their number."""
    journal = Journal(state(0.0), folder)
    for sequence in (3, 5, 9):
        journal.record(sequence, state(10.0 * sequence), {"reply": float(sequence)})
    return journal


@pytest.mark.parametrize(("base", "value"), [(0, 0.0), (3, 30.0), (5, 50.0), (9, 90.0)])
def test_every_base_that_is_kept_can_be_restored(journal: Journal, base: int, value: float) -> None:
    assert journal.snapshots == [3, 5, 9]
    assert value_after(journal, base) == value


def test_what_changes_after_it_was_recorded_changes_nothing_here(folder: Path | None) -> None:
    journal = Journal(state(0.0), folder)
    current = state(1.0)
    journal.record(1, current, {"dual": current.dual})
    current.dual[:] = 99
    assert value_after(journal, 1) == 1.0
    reply = journal.reply_to(1)
    assert reply is not None
    np.testing.assert_array_equal(np.asarray(reply["dual"]), [1.0, 1.0])


def test_a_base_that_is_not_kept_is_lost(journal: Journal) -> None:
    with raises(LostStateError):
        journal.state_after(4)
    with raises(LostStateError):
        Journal(state(0.0)).state_after(1)


def test_another_process_finds_everything_that_was_recorded(tmp_path: Path) -> None:
    journal = Journal(state(0.0), tmp_path / "journal", sync=True)
    for sequence in (3, 1 << 33, 12):
        journal.record(sequence, state(float(sequence)), {"note": "done", "dual": np.ones(3)})
    again = Journal(state(0.0), tmp_path / "journal")
    assert again.snapshots == [3, 12, 1 << 33]
    for sequence in (3, 12, 1 << 33):
        assert value_after(again, sequence) == sequence
        reply = again.reply_to(sequence)
        assert reply is not None
        assert reply["note"] == "done"
    again.forget(12, 0, 0)
    assert Journal(state(0.0), tmp_path / "journal").snapshots == [12, 1 << 33]


@pytest.mark.parametrize("damage", ["one bit", "cut off", "empty"])
def test_a_damaged_entry_is_told_and_the_others_are_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(state(0.0), tmp_path)
    journal.record(3, state(1.0), {})
    journal.record(5, state(2.0), {})
    entry = tmp_path / f"{5:020d}.state"
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes({"one bit": bytes(content), "cut off": bytes(content[:-3]), "empty": b""}[damage])
    again = Journal(state(0.0), tmp_path)
    assert again.snapshots == [3]
    assert value_after(again, 3) == 1.0
    assert entry.name in caplog.text
    assert "after instruction 5" in caplog.text
    again.record(5, state(7.0), {})
    assert value_after(Journal(state(0.0), tmp_path), 5) == 7.0


def test_what_cannot_be_written_is_told_and_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file in place of the folder")
    journal = Journal(state(0.0), tmp_path / "journal" / "of-run")
    with raises(StorageError, file="of-run"):
        journal.record(3, state(1.0), {})
    assert journal.snapshots == []


def test_an_entry_of_another_version_of_the_algorithm_and_a_file_of_something_else_are_refused(tmp_path: Path) -> None:
    Journal(state(0.0), tmp_path).record(3, state(1.0), {})
    with raises(CheckpointError):
        Journal(Other(np.zeros(2)), tmp_path)
    (tmp_path / "notes.state").touch()
    with raises(CheckpointError):
        Journal(state(0.0), tmp_path)


def test_with_a_folder_only_the_last_entries_are_in_memory(tmp_path: Path) -> None:
    """However far a server lets the journal grow, and whichever entry it comes back to."""
    large = 1 << 20
    tracemalloc.start()
    try:
        journal = Journal(state(0.0), tmp_path / "journal")
        for sequence in range(1, 33):
            journal.record(sequence, State(np.full(large // 8, float(sequence))), {"reply": np.ones(large // 8)})
        held = tracemalloc.get_traced_memory()[0]
        again = Journal(state(0.0), tmp_path / "journal")
        held_again = tracemalloc.get_traced_memory()[0] - held
    finally:
        tracemalloc.stop()
    assert 4 * large <= held < 6 * large
    assert held_again < 8 * large
    for each in (journal, again):
        assert each.snapshots == list(range(1, 33))
        assert [value_after(each, sequence) for sequence in (32, 31, 5, 1)] == [32.0, 31.0, 5.0, 1.0]
        reply = each.reply_to(3)
        assert reply is not None
        np.testing.assert_array_equal(np.asarray(reply["reply"]), np.ones(large // 8))
    (tmp_path / "journal" / f"{1:020d}.state").write_bytes(b"damaged meanwhile")
    for ask in (again.state_after, again.reply_to):
        with raises(CheckpointError, file="00000000000000000001.state"):
            ask(1)


def test_what_there_is_no_room_for_is_refused_and_not_remembered(folder: Path | None) -> None:
    journal = Journal(state(0.0), folder, quota=DiskQuota(3 * BLOCK))
    for sequence in (1, 2, 3):
        journal.record(sequence, state(float(sequence)), {})
    with raises(StorageError):
        journal.record(4, state(4.0), {})
    assert journal.snapshots == [1, 2, 3]
    assert journal.reply_to(4) is None
    assert value_after(journal, 3) == 3.0
    if folder is not None:
        assert len(list(folder.iterdir())) == 3
    journal.forget(2, 0, 0)
    journal.record(4, state(4.0), {})
    journal.forget(0, 2, 4)
    journal.record(5, state(5.0), {})
    assert journal.snapshots == [2, 4, 5]
    with raises(StorageError):
        journal.record(6, state(6.0), {})
