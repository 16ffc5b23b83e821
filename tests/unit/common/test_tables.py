"""A table can be read at any moment, whatever was cut off, and a resumed run goes on with it."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fenchel.common.errors import CheckpointError, StorageError
from fenchel.common.storage import tables
from fenchel.common.storage.tables import TableLog
from tests.messages import raises

SCHEMA = pa.schema([("round", pa.int64()), ("loss", pa.float64()), ("phase", pa.string())])


def rows(*rounds: int) -> list[tuple[int, float, str]]:
    return [(t, 1.0 / t, f"phase {t}") for t in rounds]


def rounds_of(path: Path) -> list[int]:
    rounds: list[int] = tables.read(path)["round"].to_pylist()
    return rounds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.parquet"


def grown(path: Path, *batches: tuple[int, ...]) -> list[int]:
    """Write a table and leave it growing; return the length of its file after each batch."""
    log = TableLog(path, SCHEMA)
    lengths = []
    for batch in batches:
        log.append(rows(*batch))
        lengths.append(path.with_suffix(".arrows").stat().st_size)
    log.close()
    return lengths


def test_a_growing_table_shows_every_row_that_was_appended(path: Path) -> None:
    log = TableLog(path, SCHEMA)
    for t in (1, 2, 3):
        log.append(rows(t))
        assert rounds_of(path) == list(range(1, t + 1))
    log.append([])
    assert tables.read(path).to_pylist()[1] == {"round": 2, "loss": 0.5, "phase": "phase 2"}
    log.close()


@pytest.mark.parametrize("earlier", [(), (3,)])
def test_a_table_can_be_read_before_its_first_row(path: Path, earlier: tuple[int, ...]) -> None:
    """A server that is killed in its first round leaves such tables, and the one that resumes the run reads them."""
    if earlier:
        grown(path, earlier)
    log = TableLog(path, SCHEMA, kept_rounds=len(earlier))
    assert rounds_of(path) == []
    assert tables.read(path).schema == SCHEMA
    log.append(rows(1))
    log.finish()
    assert rounds_of(path) == [1]


def test_a_finished_table_is_one_parquet_file(path: Path) -> None:
    log = TableLog(path, SCHEMA)
    log.append(rows(1, 2))
    log.finish()
    assert [file.name for file in path.parent.iterdir()] == ["metrics.parquet"]
    assert rounds_of(path) == [1, 2]
    assert tables.exists(path)


def test_a_table_cut_at_any_byte_is_readable_up_to_the_last_whole_batch(path: Path) -> None:
    lengths = grown(path, (1,), (2, 3), (4,))
    growing = path.with_suffix(".arrows")
    whole = growing.read_bytes()
    for length in range(len(whole), -1, -1):
        growing.write_bytes(whole[:length])
        expected = [[], [1], [1, 2, 3], [1, 2, 3, 4]][sum(length >= each for each in lengths)]
        try:
            assert rounds_of(path) == expected
        except CheckpointError:
            assert length < lengths[0], "only a table without a whole batch may be unreadable"


@pytest.mark.parametrize("finished", [False, True])
def test_a_resumed_table_drops_the_rounds_that_are_done_again(path: Path, finished: bool) -> None:
    grown(path, (1,), (2,), (3, 4))
    if finished:
        TableLog(path, SCHEMA, kept_rounds=4).finish()
    log = TableLog(path, SCHEMA, kept_rounds=2)
    assert rounds_of(path) == [1, 2]
    log.append(rows(3))
    log.finish()
    assert rounds_of(path) == [1, 2, 3]


def test_a_crash_while_a_table_is_resumed_loses_no_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(path, (1, 2))

    def crash(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # who crashes closes nothing
        crashing.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            TableLog(path, SCHEMA, kept_rounds=2)
        gc.collect()
    assert rounds_of(path) == [1, 2]
    TableLog(path, SCHEMA, kept_rounds=1).close()
    assert rounds_of(path) == [1]


def test_a_full_disk_is_told_whenever_a_table_is_written(path: Path) -> None:
    """The limit on the size of files stands in for a full disk: the same call fails, in the middle of the file."""
    log = TableLog(path, SCHEMA)
    log.append(rows(1, 2))
    with full_disk(path.with_suffix(".arrows").stat().st_size):
        with raises(StorageError):
            log.close()  # its end
        log.close()
    with full_disk(100), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with raises(StorageError):
            log.finish()
        with raises(StorageError):
            TableLog(path, SCHEMA, kept_rounds=2)
        gc.collect()
    assert rounds_of(path) == [1, 2]
    TableLog(path, SCHEMA, kept_rounds=2).finish()
    assert rounds_of(path) == [1, 2]


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_damaged_table_is_named_as_it_lies_there_and_can_be_moved_away(path: Path) -> None:
    grown(path, (1, 2))
    growing = path.with_suffix(".arrows")
    growing.write_bytes(b"not a table")
    with raises(CheckpointError, file="metrics.arrows"):
        TableLog(path, SCHEMA, kept_rounds=2)
    growing.rename(path.with_suffix(".damaged"))
    assert not tables.exists(path)
    with raises(CheckpointError, file="metrics.parquet"):
        tables.read(path)
    path.write_bytes(b"not a table")
    with raises(CheckpointError, file="metrics.parquet"):
        tables.read(path)
    path.unlink()
    log = TableLog(path, SCHEMA, kept_rounds=2)
    log.append(rows(3))
    log.finish()
    assert rounds_of(path) == [3]


def test_a_table_of_another_version_goes_on_with_the_columns_of_this_one(path: Path) -> None:
    grown(path, (1, 2, 3))
    schema = pa.schema([("round", pa.int32()), ("away", pa.float64()), ("phase", pa.string())])
    log = TableLog(path, schema, kept_rounds=2)
    log.append([(3, 0.5, "phase 3")])
    log.finish()
    assert tables.read(path).to_pylist() == [
        {"round": 1, "away": None, "phase": "phase 1"},
        {"round": 2, "away": None, "phase": "phase 2"},
        {"round": 3, "away": 0.5, "phase": "phase 3"},
    ]
