"""Files that a server may have open: how many connections they are enough for, and what it does where they are not."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fenchel.common.errors import SettingsError, StorageError, TooManyFilesError
from fenchel.common.storage import store, tables
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Values
from fenchel.deploy.cli import main
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.deploy.monitoring.web import READERS
from fenchel.fleet.metering import open_files
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.open_files import RESERVED, connections
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.server import checkpointer
from fenchel.server.checkpointer import until_written
from tests.conftest import MakeSettings
from tests.messages import raises

LOOPBACK = "127.0.0.1"


def taken() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@contextmanager
def no_file_left() -> Iterator[None]:
    """Let this process open no file more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_may_take_what_is_neither_open_nor_kept_for_the_run() -> None:
    assert connections(1000, 2, LOOPBACK, taken() + RESERVED + 50) == 50
    assert connections(40, 2, LOOPBACK, taken() + RESERVED + 50) == 40


def test_addresses_of_one_name_share_the_connections_as_grpc_counts_each_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: None, **more: Any) -> list[Any]:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (LOOPBACK, 0)), (*stream, (LOOPBACK, 0)), (*stream, ("::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert connections(1000, 2, "localhost", taken() + RESERVED + 50) == 25


def test_a_run_with_more_clients_than_there_are_files_does_not_start() -> None:
    files = taken() + RESERVED + 50
    assert connections(1000, 50, LOOPBACK, files) == 50
    with raises(SettingsError, key="clients"):
        connections(1000, 51, LOOPBACK, files)
    with raises(SettingsError, key="clients"):
        connections(1000, 1, LOOPBACK, 64)


def test_what_is_kept_for_a_run_is_enough_for_the_readers_of_both_web_servers_and_as_many_files_of_its_own() -> None:
    assert RESERVED >= 2 * 2 * (READERS + 2)


def test_each_client_can_dial_twice_as_where_its_last_connection_is_not_known_to_be_dead() -> None:
    assert Limits.of(2).max_connections == Limits().max_connections
    assert Limits.of(10_000).max_connections == 20_000


def test_a_process_of_fenchels_own_raises_its_limit_and_an_import_does_not() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 500)); "
        "import fenchel, fenchel.server.transport.service, fenchel.deploy.cli.up; "
        "from fenchel.fleet.metering import open_files; print(open_files.largest_number()); "
        "open_files.raise_limit(); print(open_files.largest_number())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "500"]


def test_the_limit_may_be_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert open_files.largest_number() == sys.maxsize


# While there are none


def test_a_file_that_cannot_be_opened_for_now_is_another_error_than_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "state"
    values: Values = {"round": 7, "model": np.zeros(3)}
    owners: tuple[store.Owner, ...] = ("server", "client")
    store.write(path, values)
    for owner in owners:
        with raises(TooManyFilesError, source=path), no_file_left():
            store.write_content(path, store.Content.of(values), owner=owner)
        with raises(TooManyFilesError, source=path), no_file_left():
            store.read(path, owner)
    with raises(TooManyFilesError, source=path), no_file_left():
        store.write_text(path, "")
    assert store.read(path)["round"] == 7
    assert TooManyFilesError.exit_code != StorageError.exit_code


def test_a_table_that_could_not_be_finished_for_want_of_files_is_finished_later(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    log = tables.TableLog(path, pa.schema([("round", pa.int64())]))
    log.append([(1,), (2,)])
    log.close()
    with raises(TooManyFilesError, source=path.with_suffix(".arrows")), no_file_left():
        log.finish()
    for _ in range(2):
        log.finish()
    assert tables.read(path)["round"].to_pylist() == [1, 2]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were made, none of which takes time."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


def failing(times: int, path: Path, number: int = errno.EMFILE) -> Any:
    left = [times]

    def write() -> None:
        with store.writing(path):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(number, os.strerror(number))

    return write


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_write_waits_for_files_and_the_log_says_so_once(
    number: int, pauses: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    throttled_log = ThrottledLog(clock=lambda: 0.0)
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        await until_written("the model", failing(20, tmp_path, number), throttled_log)
    assert pauses == [checkpointer._PAUSE] * 20
    assert [message.partition(" cannot")[0] for message in caplog.messages] == ["the model"]


async def test_a_write_that_waits_in_vain_ends_the_run(pauses: list[float], tmp_path: Path) -> None:
    with raises(TooManyFilesError):
        await until_written("the model", failing(1000, tmp_path), ThrottledLog(clock=lambda: 0.0))
    assert len(pauses) == checkpointer._TRIES - 1


async def test_a_full_disk_is_not_waited_for(pauses: list[float], tmp_path: Path) -> None:
    with raises(StorageError):
        await until_written("the model", failing(1, tmp_path, errno.ENOSPC), ThrottledLog(clock=lambda: 0.0))
    assert not pauses


@pytest.mark.parametrize("kept_from", ["round", "end"])
async def test_a_run_waits_for_files_with_all_that_it_writes_and_ends_as_any_other(
    kept_from: str, make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = make_settings(checkpoint={"every": 1})
    undisturbed = RunFolder.create(tmp_path, "undisturbed")
    await run_in_process(chosen, undisturbed)
    monkeypatch.setattr(checkpointer, "_PAUSE", 0.0)
    folder = RunFolder.create(tmp_path, "disturbed")
    by_round = {folder.checkpoint, folder.disclosures, folder.environments}
    wanted = by_round if kept_from == "round" else {folder.model, folder.summary, folder.metrics, folder.calls}
    failed: set[Path] = set()
    spared: set[Path] = set()  # the next time

    def fail_every_second_time(path: Path) -> None:
        if path in wanted - spared:
            spared.add(path)
            failed.add(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        spared.discard(path)

    replace, write_table = Path.replace, pq.write_table

    def replaced(source: Path, target: Path) -> Path:
        fail_every_second_time(target)
        return replace(source, target)

    def table_written(table: pa.Table, where: Path) -> None:
        fail_every_second_time(where)
        write_table(table, where)

    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(pq, "write_table", table_written)
    summary = await run_in_process(chosen, folder)
    assert summary.completed
    assert failed == wanted
    assert folder.model.read_bytes() == undisturbed.model.read_bytes()
    assert tables.read(folder.metrics).num_rows == chosen.rounds
    assert all(path.exists() for path in wanted)


def test_a_command_that_finds_no_file_for_a_module_ends_with_the_code_by_which_it_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def application(**words: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "module.py")

    monkeypatch.setattr(main, "set_up_process", lambda: None)
    monkeypatch.setattr(main, "application", lambda command: application)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == TooManyFilesError.exit_code
    assert "module.py" in capsys.readouterr().err
