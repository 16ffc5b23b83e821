"""A ledger charges each payload once, before it leaves, and never forgets one."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fenchel.client.count_file import write_count
from fenchel.client.privacy.budget import Budget
from fenchel.client.privacy.ledger import Ledger
from fenchel.client.privacy.ledger_file import _chained, _line
from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.errors import CheckpointError, PrivacyBudgetError, StorageError
from tests.messages import raises

RELEASE = Release(5.0, 0.2)
OWNER = "run 7, client a"


def payload(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def full(descriptor: int) -> None:
    """In place of ``os.fsync``: the disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def opened(path: Path | None, **options: Any) -> Ledger:
    return Ledger(path, OWNER, **options)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "state" / "ledger.jsonl" if request.param == "file" else None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger with three uploads."""
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    for t in range(3):
        ledger.charge(payload(t), t, RELEASE)
    return path


def test_a_payload_that_is_sent_again_costs_nothing(path: Path | None) -> None:
    ledger = opened(path)
    for _ in range(3):
        ledger.charge(payload(0), 0, RELEASE)
    ledger.charge(payload(0), 1, Release(0.1))  # whatever is said of it: the bytes are known
    assert ledger.releases == {RELEASE: 1}


def test_an_upload_beyond_the_cap_is_not_charged(path: Path | None) -> None:
    cap = epsilon({RELEASE: 3}, 1e-5)
    ledger = opened(path, budget=Budget(cap))
    for t in range(3):
        ledger.charge(payload(t), t, RELEASE)
    before = path.read_bytes() if path is not None else b""
    with raises(PrivacyBudgetError):
        ledger.charge(payload(3), 3, RELEASE)
    assert ledger.uploads == 3
    assert epsilon(ledger.releases, 1e-5) <= cap
    if path is not None:
        assert path.read_bytes() == before
        with raises(PrivacyBudgetError):
            opened(path, budget=Budget(cap)).charge(payload(3), 3, RELEASE)
    ledger.charge(payload(1), 1, RELEASE)  # a retry still may leave


def test_it_survives_restarts(file: Path) -> None:
    for t in range(3, 6):
        ledger = opened(file)
        assert ledger.uploads == t
        ledger.charge(payload(0), 0, RELEASE)  # known since before the restart
        ledger.charge(payload(t), t, Release(1 / 3, 0.1 + 0.2))
    ledger = opened(file)
    assert ledger.releases == {RELEASE: 3, Release(1 / 3, 0.1 + 0.2): 3}


def test_it_is_on_the_disk_when_it_returns_for_its_owner_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    opened(file).charge(payload(3), 3, RELEASE)
    assert file.stat().st_size in synced
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_line_that_a_crash_cut_off_is_ignored(file: Path) -> None:
    whole = file.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start, len(whole) - 1):  # every place where the last line can break
        file.write_bytes(whole[:end])
        ledger = opened(file)
        assert ledger.uploads == 2
        ledger.charge(payload(2), 2, RELEASE)
        assert file.read_bytes() == whole


def test_a_header_that_a_crash_cut_off_is_ignored(file: Path) -> None:
    header = file.read_bytes().splitlines(keepends=True)[0]
    file.write_bytes(header[:20])
    opened(file).charge(payload(0), 0, RELEASE)
    assert opened(file).uploads == 1


def test_a_last_line_that_only_lacks_its_end_counts(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert opened(file).uploads == 3
    assert file.read_bytes() == whole


@pytest.mark.parametrize(("line", "change"), [*((line, "edited") for line in range(4)), (1, "gone"), (2, "gone")])
def test_a_changed_or_missing_line_is_refused(file: Path, line: int, change: str) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    edited = lines[line].replace(b'"version": 2', b'"version": 2, "more": 2').replace(b"5.0", b"9.0")
    lines[line] = edited if change == "edited" else b""
    file.write_bytes(b"".join(lines))
    with raises(CheckpointError, file="ledger.jsonl"):
        opened(file)


def test_what_is_not_json_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-10] + b"\n")  # complete, so no crash of this program wrote it
    with raises(CheckpointError, row=4):
        opened(file)
    file.write_bytes(whole + b"\x00" * 30 + b"\n")
    with raises(CheckpointError, row=5):
        opened(file)


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b'{"kind": "something else"}\n', None])
def test_another_file_and_a_ledger_of_somebody_else_are_refused(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    with raises(CheckpointError, file="ledger.jsonl"):
        Ledger(file, "run 7, client b" if content is None else OWNER)


def test_a_lowered_ledger_is_refused(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))  # an old copy: whole, but too short
    assert opened(file).uploads == 2
    count = file.with_name("count")
    write_count(count, 3)
    with raises(CheckpointError, file="ledger.jsonl"):
        opened(file, count=count)
    file.unlink()
    with raises(CheckpointError, file="ledger.jsonl"):
        opened(file, count=count)


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_a_file_that_changes_under_a_running_client_stops_it(file: Path, change: str) -> None:
    ledger = opened(file)
    if change == "gone":
        file.unlink()
    elif change == "shorter":
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    else:
        opened(file).charge(payload(9), 9, RELEASE)  # a second client with the same folder
    with raises(CheckpointError, file="ledger.jsonl"):
        ledger.charge(payload(3), 3, RELEASE)
    assert ledger.uploads == 3


def test_a_full_disk_leaves_no_half_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, ledger = file.read_bytes(), opened(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with raises(StorageError, file="ledger.jsonl"):
            ledger.charge(payload(3), 3, RELEASE)
    assert file.read_bytes() == whole
    assert ledger.uploads == 3
    ledger.charge(payload(3), 3, RELEASE)
    assert opened(file).uploads == 4


def test_room_that_comes_back_at_once_leaves_no_half_line_either(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not fit must not be written behind what was taken back."""
    whole, ledger = file.read_bytes(), opened(file)
    cut, limits = os.ftruncate, resource.getrlimit(resource.RLIMIT_FSIZE)

    def cut_and_make_room(descriptor: int, size: int) -> None:
        cut(descriptor, size)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(os, "ftruncate", cut_and_make_room)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))
    try:
        with raises(StorageError, file="ledger.jsonl"):
            ledger.charge(payload(3), 3, RELEASE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == whole
    ledger.charge(payload(3), 3, RELEASE)
    assert opened(file).uploads == 4


@pytest.mark.parametrize("torn", [b'{"round"', None], ids=["half a line", "no end"])
def test_a_ledger_that_cannot_be_mended_is_not_used(
    file: Path, torn: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if torn is None else whole + torn)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with raises(StorageError, file="ledger.jsonl"):
            opened(file)
    assert opened(file).uploads == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 1e-200},
        {"noise_multiplier": 1e300},
        {"noise_multiplier": 10**400},
        {"noise_multiplier": float("nan")},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": True},
        {"noise_multiplier": "1"},
        {"sampling_rate": 5e-324},
        {"sampling_rate": None},
    ],
    ids=str,
)
def test_noise_that_no_client_added_is_refused(file: Path, changed: dict[str, Any]) -> None:
    """Also where the digests are right, so that nobody computes with it: epsilon would be no number."""
    chain, lines = "", []
    for number, line in enumerate(file.read_bytes().splitlines()):
        entry = json.loads(line)
        del entry["chain"]
        entry |= changed if number == 2 else {}
        chain = _chained(chain, entry)
        lines.append(_line(entry, chain))
    file.write_bytes(b"".join(lines))
    with raises(CheckpointError, row=3):
        opened(file, budget=Budget(5.0)).charge(payload(3), 3, RELEASE)
