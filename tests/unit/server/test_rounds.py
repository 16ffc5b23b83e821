"""What a run that must wait writes down first: the rounds that are done, and nothing of the one that is going on."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.data.preparation import Preparation
from fenchel.common.errors import RunStoppedError, StorageError
from fenchel.common.settings.run import validate
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.tables import read
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.quorum import Shortfall
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.evaluation import Evaluator
from fenchel.server.rounds import Rounds, save_model
from fenchel.server.telemetry.deferred_writer import DeferredWriter
from fenchel.server.telemetry.observer import Observer, Observers
from fenchel.server.telemetry.recorder import Recorder
from tests.messages import raises
from tests.observing import Calling
from tests.unit.server.conftest import MakeMember, body

MakeRounds = Callable[..., Rounds]


@dataclass
class State:
    model: Vector


class Counting:
    """An algorithm that asks nobody and counts its rounds, in place."""

    def __init__(self) -> None:
        self.state = State(np.zeros(3))

    async def round(self, t: int) -> None:
        self.state.model += 1

    def metrics(self) -> dict[str, float]:
        return {}


class Finishing(Counting):
    """An algorithm that has no more to do."""

    model_is_known = False  # until it has finished; nothing is evaluated

    @property
    def model(self) -> Vector:
        return self.state.model

    async def finish(self) -> None:
        pass


class Never:
    """An evaluation that is never due."""

    def is_due(self, t: int) -> bool:
        return False


@pytest.fixture
def member(make_member: MakeMember) -> ClientRecord:
    """Return a client that is connected."""
    client = make_member("a")
    client.queue = asyncio.Queue()
    return client


async def nobody(fleet: Fleet, algorithm: Algorithm) -> bool:
    return False


@pytest.fixture
def make(tmp_path: Path, member: ClientRecord) -> Iterator[MakeRounds]:
    """Return a function that makes a run of one client whose regular checkpoints never come."""
    made: list[Rounds] = []

    def make_rounds(**participation: Any) -> Rounds:
        made.append(rounds_of(tmp_path, member, **participation))
        return made[-1]

    yield make_rounds
    for rounds in made:
        asyncio.run(rounds.close(completed=True))


def rounds_of(parent: Path, member: ClientRecord, **participation: Any) -> Rounds:
    settings = validate(
        {
            "rounds": 100,
            "clients": 1,
            "data": {"name": "digits"},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": "fedavg"},
            "participation": participation,
            "checkpoint": {"every": 1000},
        }
    )
    folder = RunFolder.create(parent, "run")
    writer = DeferredWriter()
    return Rounds(
        settings=settings,
        folder=folder,
        fleet=Fleet(
            members={member.name: member}, seed=0, participation=settings.participation, meanwhile=writer.schedule
        ),
        algorithm=cast(Algorithm, Counting()),
        evaluator=cast(Evaluator, Never()),
        recorder=Recorder(folder=folder, figures=()),
        preparation=Preparation(settings.data, features=64, class_names=("0", "1")),
        writer=writer,
        done=0,
        admission=nobody,
        disclosures=DisclosureRecord(folder.disclosures, folder.id, None, settings.uplink),
    )


def saved(rounds: Rounds) -> tuple[int, float]:
    """Return the round of the checkpoint on disk, and the model in it."""
    found = checkpoints.load(rounds.folder.checkpoint)
    return found.round, found.state(State).model[0]


async def test_a_run_that_waits_saves_what_was_before_the_round(make: MakeRounds, member: ClientRecord) -> None:
    rounds = make()
    for t in (1, 2, 3):
        rounds.checkpointer._keep_from = 0.0
        await rounds._round(t)
    member.base = 9
    rounds.algorithm.state.model += 0.5  # in the middle of round 4
    await rounds.checkpointer.flush()
    assert saved(rounds) == (3, 3.0)
    assert checkpoints.load(rounds.folder.checkpoint).members["a"]["base"] == 0
    assert rounds.checkpointer.saved == 3
    written = rounds.folder.checkpoint.stat().st_mtime_ns
    await rounds.checkpointer.flush()  # another phase waits, too
    assert rounds.folder.checkpoint.stat().st_mtime_ns == written


async def test_an_observer_ends_a_run_that_waits_by_an_error(
    make: MakeRounds, member: ClientRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Observer):
        def waiting(self, reason: str) -> None:
            raise RunStoppedError(reason)

    rounds = make()
    monkeypatch.setattr(rounds, "observer", Impatient())
    lacking = Shortfall(
        "train", 1, answered=0, asked=1, needed=1, setting="participation.min_replies", missing=[member], seconds=9.0
    )
    ended = False

    async def wait_for_replies(fresh: bool) -> None:
        nonlocal ended
        rounds.fleet.shortfalls.note(object(), lacking, log=False)
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    monkeypatch.setattr(rounds, "_go", wait_for_replies)
    with raises(RunStoppedError):
        await rounds.go(fresh=True)
    assert ended


async def test_two_checkpoints_are_never_written_at_the_same_time(
    make: MakeRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing: list[int] = []
    order = []
    save = checkpoints.save

    def slow(folder: RunFolder, checkpoint: Checkpoint, *, sync: bool) -> None:
        assert not writing
        writing.append(checkpoint.round)
        time.sleep(0.02)
        order.append(writing.pop())
        save(folder, checkpoint, sync=sync)

    monkeypatch.setattr(checkpoints, "save", slow)
    rounds = make()
    await rounds._round(1)
    first = asyncio.create_task(rounds._save(wait=True))
    await asyncio.sleep(0)
    rounds.checkpointer._keep_from = 0.0
    await rounds._round(2)
    await asyncio.gather(first, rounds.checkpointer.flush(), rounds.checkpointer.flush(), rounds._save(wait=True))
    assert order[0] == 1
    assert set(order) == {1, 2}
    assert saved(rounds) == (2, 2.0)


async def test_a_run_that_ends_waits_for_what_is_being_written_and_begins_nothing(
    make: MakeRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    save = checkpoints.save

    def slow(folder: RunFolder, checkpoint: Checkpoint, *, sync: bool) -> None:
        time.sleep(0.05)
        save(folder, checkpoint, sync=sync)
        written.append(checkpoint.round)

    monkeypatch.setattr(checkpoints, "save", slow)
    rounds = make()
    await rounds._round(1)
    writing = asyncio.create_task(rounds._save(wait=True))
    await asyncio.sleep(0.01)
    rounds.checkpointer._keep_from = 0.0
    await rounds._round(2)
    waiting = asyncio.create_task(rounds.checkpointer.flush())
    await asyncio.sleep(0)
    writing.cancel()
    await rounds.close(completed=False)
    assert written == [1]
    await waiting
    await asyncio.sleep(0.1)
    assert written == [1]


async def test_fewer_clients_than_wanted_do_not_make_a_run_save_all_the_time(
    make: MakeRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = make()
    rounds.fleet.members["a"].queue = None
    assert rounds.fleet.is_short
    saves = 0
    write = checkpoints.save

    def counted(folder: RunFolder, checkpoint: Checkpoint, *, sync: bool) -> None:
        nonlocal saves
        saves += 1
        time.sleep(0.01)
        write(folder, checkpoint, sync=sync)

    monkeypatch.setattr(checkpoints, "save", counted)
    monkeypatch.setattr(rounds.checkpointer, "snapshot", lambda *_: None)
    began = time.perf_counter()
    for t in range(1, 100):
        await rounds._round(t)
    assert saves <= 2 + (time.perf_counter() - began) / 0.19, "0.19 s between one that takes 10 ms and the next"


async def test_what_was_kept_gives_way_to_a_regular_checkpoint(make: MakeRounds) -> None:
    rounds = make()
    await rounds._round(1)
    rounds.done = 2
    await rounds._save(wait=True)
    await rounds.checkpointer.flush()
    assert checkpoints.load(rounds.folder.checkpoint).round == 2
    assert not rounds.folder.previous_checkpoint.exists()


async def test_keeping_takes_a_hundredth_of_the_time_at_most(make: MakeRounds, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0

    def take_a_second() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr("fenchel.server.checkpointer.time.thread_time", take_a_second)  # between two looks there is one
    monkeypatch.setattr("fenchel.server.checkpointer.time.perf_counter", lambda: now)
    rounds = make()
    kept = []
    for done in range(1, 500):
        rounds.checkpointer.snapshot(done, rounds.algorithm.state)
        kept.append(rounds.checkpointer.last_saved_or_kept)
        now += 1.0
    assert sorted(set(kept)) == [1, 100, 199, 298, 397, 496]


async def test_a_run_that_stops_in_place_of_waiting_keeps_nothing(make: MakeRounds) -> None:
    rounds = make(on_shortage="stop")
    await rounds._round(1)
    await rounds._round(2)
    await rounds.checkpointer.flush()
    assert not rounds.folder.checkpoint.exists()


async def test_a_disk_that_is_full_is_told_and_the_run_goes_on_waiting(
    make: MakeRounds, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = make()
    await rounds._round(1)
    rounds.folder.checkpoint.with_name("latest.new").mkdir()  # where it would be written first
    with caplog.at_level(logging.ERROR, "fenchel.server"):
        await rounds.checkpointer.flush()
    assert "cannot be written" in caplog.text
    assert rounds.checkpointer.saved is None


async def test_a_checkpoint_that_fails_ends_the_run_long_before_the_next_is_due(make: MakeRounds) -> None:
    rounds = make()
    await rounds._round(1)
    rounds.folder.checkpoint.with_name("latest.new").mkdir()
    await rounds._save(wait=False)
    await rounds.checkpointer._idle()
    with raises(StorageError):
        await rounds._round(2)
    assert rounds.done == 2


async def test_a_state_too_large_to_keep_is_saved_before_a_round_that_will_have_to_wait(
    make: MakeRounds, member: ClientRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_LARGE_BYTES", 8)
    rounds = make()
    for t in (1, 2):
        await rounds._round(t)
        await rounds.checkpointer.flush()
    assert not rounds.folder.checkpoint.exists()
    member.queue = None  # it has gone away
    await rounds._round(3)
    assert saved(rounds) == (2, 2.0)


async def test_a_round_is_noted_while_the_clients_work_on_the_next(make: MakeRounds) -> None:
    rounds = make()
    told: list[int] = []
    rounds.observer = Observers(Calling(round_ended=lambda row: told.append(int(row["round"]))))
    await rounds._round(1)
    assert told == []
    rounds.fleet.meanwhile()
    await asyncio.sleep(0)
    assert told == [1]
    await rounds._round(2)
    await rounds._round(3)
    assert told == [1, 2]


async def test_a_round_is_noted_soon_also_where_the_next_asks_nobody(make: MakeRounds) -> None:
    rounds = make()
    told = asyncio.Event()
    rounds.observer = Observers(Calling(round_ended=lambda row: told.set()))
    await rounds._round(1)
    async with asyncio.timeout(20):
        await told.wait()


async def test_a_checkpoint_never_knows_a_round_that_the_tables_lack(make: MakeRounds) -> None:
    rounds = make()
    await rounds._round(1)
    rounds.fleet.meanwhile()  # too late: the checkpoint comes first
    await rounds._save(wait=True)
    assert read(rounds.folder.metrics)["round"].to_pylist() == [1]
    assert saved(rounds)[0] == 1


async def test_what_goes_wrong_while_a_round_is_noted_ends_the_run(make: MakeRounds) -> None:
    def fails(row: Row) -> None:
        raise StorageError("no reader")

    rounds = make()
    rounds.observer = Observers(Calling(round_ended=fails))
    await rounds._round(1)
    rounds.fleet.meanwhile()
    await asyncio.sleep(0)
    with raises(StorageError):
        await rounds._round(2)
    rounds.observer = Observers()


@pytest.mark.parametrize("noted_before", [False, True])
async def test_what_was_asked_is_in_the_tables_whatever_goes_wrong_while_it_is_noted(
    make: MakeRounds, member: ClientRecord, noted_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the account of privacy counts by these rows."""

    def fails(row: Row) -> None:
        raise StorageError("no reader")

    async def ask(t: int) -> None:
        call = member.post("train", t, pb.ASK, body())
        rounds.fleet.calls.append(call)
        member.resolve(call)

    rounds = make()
    rounds.algorithm.round = ask  # type: ignore[method-assign]
    await rounds._round(1)
    rounds.observer = Observers(Calling(round_ended=fails))
    if noted_before:
        rounds.fleet.meanwhile()
        await asyncio.sleep(0)
        assert "the run ends after the next round" in caplog.text
    with raises(StorageError):
        await rounds._round(2)
    await rounds.close(completed=False)
    for table in (rounds.folder.metrics, rounds.folder.calls):
        assert read(table)["round"].to_pylist() == [1, 2]
    assert "the last round could not be recorded completely: no reader" in caplog.text


@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("hidden", [False, True])
async def test_a_model_that_clients_have_encrypted_is_for_its_owner_alone(
    hidden: bool, mask: int, make: MakeRounds
) -> None:
    rounds = make()
    rounds.settings = validate(
        {
            "rounds": 1,
            "clients": 2,
            "data": {
                "name": "breast_cancer",
                "scale": "unit-rows",
                "partition": {"kind": "grid", "sample_groups": 1, "feature_groups": 2},
            },
            "objective": {"kind": "hinge"},
            "algorithm": {"name": "hyfdca", "protect_primal": hidden},
        }
    )
    rounds.algorithm = cast(Algorithm, Finishing())
    rounds.done = 1
    before = os.umask(mask)
    try:
        await rounds.go(fresh=False)
    finally:
        os.umask(before)
    assert rounds.folder.model.stat().st_mode & 0o777 == (0o600 if hidden else 0o666 & ~mask)


def test_a_model_that_a_crash_left_half_written_does_not_give_its_rights_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "model.npz.new").write_bytes(b"half")
    (tmp_path / "model.npz.new").chmod(0o666)
    save_model(tmp_path / "model.npz", {"model": np.ones(3)}, private=True)
    assert (tmp_path / "model.npz").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    with np.load(tmp_path / "model.npz") as archive:
        np.testing.assert_array_equal(archive["model"], np.ones(3))
