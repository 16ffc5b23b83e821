"""Observers follow a run, and none that fails stops it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fenchel
from fenchel.common.errors import RunStoppedError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.fleet.calls import Call
from fenchel.server.telemetry.observer import Observer, Observers, OngoingRun, StopRun
from fenchel.server.telemetry.summary import Summary
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.observing import Calling


class Noting(Observer):
    """Notes every call."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []
        self.threads: dict[str, int] = {}

    def _note(self, *note: object) -> None:
        self.notes.append(note)
        self.threads[str(note[0])] = threading.get_ident()

    def begun(self, run: OngoingRun) -> None:
        self._note("begun", run.folder.id, run.settings.rounds)

    def joined(self, present: int, expected: int | None) -> None:
        self._note("joined", present, expected)

    def stream_opened(self, client: str, traceparent: str) -> None:
        self._note("stream_opened", client, traceparent)

    def round_begun(self, t: int) -> None:
        self._note("round_begun", t)

    def calls(self, calls: Sequence[Call]) -> None:
        self._note("calls", len(calls))

    def round_ended(self, row: Row) -> None:
        self._note("round_ended", row["round"])

    def ended(self, summary: Summary) -> None:
        self._note("ended", summary.completed, summary.rounds, summary.reason)

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [note[1:] for note in self.notes if note[0] == name]


class Failing(Noting):
    """Fails in every call."""

    def _note(self, *note: object) -> None:
        super()._note(*note)
        raise ConnectionRefusedError("no server")


class Stopping(Noting):
    """Stops the run in a call that begins with some arguments."""

    def __init__(self, *call: object, error: fenchel.FenchelError | fenchel.StopRun) -> None:
        super().__init__()
        self._call, self._error = call, error

    def _note(self, *note: object) -> None:
        super()._note(*note)
        if note[: len(self._call)] == self._call:
            raise self._error


@pytest.fixture
def settings(make_settings: MakeSettings) -> RunSettings:
    return make_settings()


def conducted(settings: RunSettings, runs: Path, observer: Observer) -> RunFolder:
    folder = RunFolder.create(runs, "observed")
    asyncio.run(run_in_process(settings, folder, observer=observer))
    return folder


def test_a_run_is_followed_from_its_beginning_to_its_end(settings: RunSettings, tmp_path: Path) -> None:
    first, second = Noting(), Noting()
    folder = conducted(settings, tmp_path, Observers(first, Observers(second)))
    assert first.notes == second.notes
    assert first.notes[0] == ("begun", folder.id, 2)
    assert first.notes[-1] == ("ended", True, 2, "")
    assert first.named("joined") == [(1, 3), (2, 3), (3, 3)]
    assert len(first.named("stream_opened")) == 3
    assert first.named("round_begun") == [(1,), (2,)]
    assert first.named("round_ended") == [(1,), (2,)]
    assert sum(int(str(number)) for (number,) in first.named("calls")) == len(fenchel.Run(folder.path).calls_table)
    loop = threading.get_ident()
    assert {name for name, thread in first.threads.items() if thread != loop} == {"ended"}


def test_an_observer_that_fails_is_logged_once_and_changes_nothing(
    settings: RunSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = conducted(settings, tmp_path, Observer())
    failing, other = Failing(), Noting()
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        folder = conducted(settings, tmp_path, Observers(failing, other))
    warnings = [record.getMessage() for record in caplog.records if "Failing" in record.getMessage()]
    assert len(warnings) == 1
    assert f"{__file__}, line " in warnings[0]
    assert "no server" in warnings[0]
    assert [note[0] for note in failing.notes] == [note[0] for note in other.notes]
    assert folder.model.read_bytes() == plain.model.read_bytes()


@pytest.mark.parametrize("method", ["begun", "round_begun", "round_ended"])
def test_an_observer_stops_the_run_by_an_error_of_fenchel(method: str, settings: RunSettings, tmp_path: Path) -> None:
    other = Noting()
    with pytest.raises(fenchel.FenchelError):
        conducted(settings, tmp_path, Observers(Stopping(method, error=RunStoppedError("good enough")), other))
    assert len(other.named("begun")) == 1
    ((completed, rounds, reason),) = other.named("ended")
    assert not completed
    assert isinstance(rounds, int)
    assert rounds < 3
    assert "good enough" in str(reason)


@pytest.mark.usefixtures("program_log")
def test_an_observer_ends_a_run_which_then_is_complete(
    make_settings: MakeSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(rounds=40, clients=3)
    patient, other = Stopping("round_ended", 2, error=fenchel.StopRun("good enough")), Noting()
    folder = conducted(settings, tmp_path, Observers(Observers(patient), other))
    assert patient.notes == other.notes
    ((completed, rounds, reason),) = other.named("ended")
    assert (completed, reason) == (True, "good enough")
    run = fenchel.Run(folder.path)
    assert (run.completed, run.reason) == (True, "good enough")
    assert len(run.metrics) == rounds in (2, 3)  # figures of a round are noted while the next one begins
    assert run.figures["train_loss"] == run.metrics["train_loss"].iloc[-1]
    same = make_settings(rounds=rounds, clients=3)
    assert folder.model.read_bytes() == conducted(same, tmp_path, Observer()).model.read_bytes()
    assert not caplog.records


def test_observers_that_have_ended_a_run_follow_the_next_one(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(rounds=3, clients=3)

    def end(t: int) -> None:
        if t == 1:
            raise fenchel.StopRun

    observers = Observers(Observers(Calling(round_begun=end)))
    for _ in range(2):
        run = fenchel.Run(conducted(settings, tmp_path, observers).path)
        assert (run.rounds, run.reason) == (1, "an observer has stopped it")
    resumed = fenchel.up(resume=run, in_process=True)
    assert (resumed.rounds, resumed.reason) == (3, "")


@pytest.mark.parametrize("wrong", [Noting, "tensorboard", lambda row: None])
def test_what_is_no_observer_is_refused(wrong: Any, tmp_path: Path) -> None:
    with raises(fenchel.SettingsError, key="observer"):
        fenchel.up("quickstart", observer=wrong, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_over_cannot_be_stopped(settings: RunSettings, tmp_path: Path) -> None:
    folder = conducted(settings, tmp_path, Stopping("ended", error=RunStoppedError("good enough")))
    assert fenchel.Run(folder.path).figures


def test_an_interrupted_run_has_ended_for_its_observers(settings: RunSettings, tmp_path: Path) -> None:
    noting = Noting()

    async def interrupted() -> None:
        def cancel(t: int) -> None:
            running.cancel()

        async with asyncio.TaskGroup() as tasks:
            folder = RunFolder.create(tmp_path, "observed")
            observer = Observers(Calling(round_begun=cancel), noting)
            running = tasks.create_task(run_in_process(settings, folder, observer=observer))
        assert running.cancelled()

    asyncio.run(interrupted())
    ((completed, _, reason),) = noting.named("ended")
    assert not completed
    assert reason


def test_the_first_trace_context_is_used() -> None:
    class Tracing(Observer):
        def __init__(self, context: str) -> None:
            self._context = context

        def trace_context(self, phase: str, t: int) -> str:
            return self._context

    assert Observers(Observer(), Tracing("00-a"), Tracing("00-b")).trace_context("train", 1) == "00-a"
    assert Observers().trace_context("train", 1) == ""


def test_observers_are_public() -> None:
    assert fenchel.Observer is Observer
    assert fenchel.Observers is Observers
    assert fenchel.StopRun is StopRun
