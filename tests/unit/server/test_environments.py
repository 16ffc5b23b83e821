"""People hear of environments that differ, once and within bounds, whatever clients report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fenchel.common.environment import SERVER, Environment
from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.membership.environments import Environments

HERE = Environment.current()
OTHER = replace(HERE, kernel="Another", threads=HERE.threads + 1)

Supervised = Callable[[], Environments]


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    """Return a function that supervises the same run folder, as a server process does that begins."""
    monkeypatch.setattr(Environment, "current", lambda: HERE)
    return lambda: Environments(RunFolder(tmp_path), ThrottledLog(clock=lambda: 0.0))


def hello(environment: Environment) -> pb.Hello:
    return pb.Hello(environment=environment.message())


def record(tmp_path: Path) -> EnvironmentRecord:
    return EnvironmentRecord.load(RunFolder(tmp_path).environments)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_equal_environments_are_recorded_without_a_word(
    supervised: Supervised, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = supervised()
    for name in ("north", "south", "north"):
        run.joined(name, hello(HERE))
    run.compare()
    assert record(tmp_path).latest == {SERVER: HERE, "north": HERE, "south": HERE}
    assert not warned(caplog)


def test_one_line_names_what_differs_and_whose_it_is(supervised: Supervised, caplog: pytest.LogCaptureFixture) -> None:
    run = supervised()
    run.joined("north", hello(HERE))
    run.joined("south", hello(OTHER))
    run.compare()
    run.begins(1)
    (line,) = warned(caplog)
    assert f"kernel: {HERE.kernel} (the server, north), Another (south)" in line
    assert f"threads: {HERE.threads} (the server, north), {OTHER.threads} (south)" in line
    assert "numpy" not in line


def test_late_joiners_are_compared_with_the_server(supervised: Supervised, caplog: pytest.LogCaptureFixture) -> None:
    run = supervised()
    run.joined("north", hello(HERE))
    run.compare()
    run.joined("late", hello(HERE))
    assert not warned(caplog)
    run.joined("later", hello(OTHER))
    (line,) = warned(caplog)
    assert "Another (later)" in line


def test_a_client_that_comes_back_with_another_kernel_is_reported_with_the_round(
    supervised: Supervised, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = supervised()
    run.joined("north", hello(HERE))
    run.compare()
    run.begins(7)
    run.joined("north", hello(replace(HERE, kernel="Another")))
    (line,) = warned(caplog)
    assert f"client north computes with kernel Another from round 7 on, and computed with {HERE.kernel}" in line
    assert not record(tmp_path).changes, "written as the next round begins"
    run.begins(8)
    (change,) = record(tmp_path).changes
    assert (change.participant, change.round, change.after) == ("north", 7, "Another")


def test_a_resumed_server_with_another_kernel_is_reported(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = supervised()
    first.joined("north", hello(HERE))
    first.compare()
    moved = replace(HERE, kernel="Another")
    monkeypatch.setattr(Environment, "current", lambda: moved)
    again = supervised()
    again.resume(done=4)
    again.joined("north", hello(HERE))
    again.compare()
    change, difference = warned(caplog)
    assert f"the server computes with kernel Another from round 5 on, and computed with {HERE.kernel}" in change
    assert f"kernel: Another (the server), {HERE.kernel} (north)" in difference
    assert [each.round for each in record(tmp_path).changes] == [5]


def test_a_resumed_run_on_the_same_machines_is_not_worth_a_word(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    for done in (None, 3):
        run = supervised()
        if done is not None:
            run.resume(done)
        run.joined("north", hello(HERE))
        run.compare()
    assert not warned(caplog)


def test_a_client_that_reports_anything_fills_neither_log_nor_file(
    supervised: Supervised, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = supervised()
    run.joined("north", hello(HERE))
    run.compare()
    for t in range(300):
        run.begins(t)
        text = f"{t}\x1b]0;owned\x07\nround 9  all is well " + "x" * 100_000
        names = dict.fromkeys(
            ("fenchel", "python", "numpy", "scipy", "torch", "blas", "kernel", "simd", "machine"), text
        )
        run.joined("north", pb.Hello(environment=pb.Environment(**names, threads=2**32 - 1 - t)))
    run.save_news()
    said = warned(caplog)
    assert 1 <= len(said) <= 5
    assert all(line.isprintable() and len(line) < 4000 for line in said)
    assert RunFolder(tmp_path).environments.stat().st_size < 20_000
    assert len(record(tmp_path).latest["north"].kernel) < 210
