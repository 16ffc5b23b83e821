"""Late joiners of a run, and the messages at its end."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.errors import (
    CheckpointError,
    DataError,
    FenchelError,
    JoinRefusedError,
    RunStoppedError,
    StorageError,
    TooFewRepliesError,
)
from fenchel.common.settings.participation import Participation
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import writing
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.deploy.launch.in_process import MemoryStream, run_in_process
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.fleet import Fleet
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator
from fenchel.server.membership.admission import Admission
from fenchel.server.rounds import Rounds
from fenchel.server.telemetry.observer import Observer
from tests.messages import raises

SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "clients": 2,
    "algorithm": {"name": "fedavg"},
    "objective": {"kind": "softmax"},
}


def coordinator(folder: Path) -> tuple[Coordinator, ClientRecord]:
    """Return a run of digits to which one client has described its data, and the other client."""
    made = run_of(folder, data={"name": "digits"})
    made.admission.members.update(a=ClientRecord("a", shard()), b=ClientRecord("b"))
    return made, made.admission.members["b"]


def run_of(folder: Path, **sections: Any) -> Coordinator:
    return Coordinator(validate(SETTINGS | sections), RunFolder.create(folder, "run"))


def shard(**changes: Any) -> pb.ShardDescription:
    return pb.ShardDescription(**({"samples": 40, "features": 64, "classes": 10, "features_held": 64} | changes))


async def test_the_log_names_clients_that_a_run_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fenchel.server.membership.admission._REMINDER_SECONDS", 0.01)
    made = run_of(tmp_path, data={"name": "digits"}, network={"join_timeout": 0.2})
    for name in ("a", "b"):
        made.admission.registration.instances[name] = b"1"
    made.admission.registration._close()
    made.admission.members["a"] = ClientRecord("a", shard())
    with raises(RunStoppedError):
        await made.admission.gather()
    assert "clients that joined but are not ready yet: b; see their logs" in caplog.text


class Waits:
    """An algorithm that asks newcomers first; some never answer."""

    def __init__(self, silent: set[str]) -> None:
        self.silent = silent
        self.asked: list[str] = []

    async def admit(self, cohort: Cohort) -> None:
        self.asked += cohort.clients
        await asyncio.sleep(0.01)
        if self.silent & set(cohort):
            raise TooFewRepliesError("0 of 1 clients answered")


async def test_newcomers_that_do_not_answer_hold_up_each_border_once_and_then_must_wait(tmp_path: Path) -> None:
    admission = newcomer(tmp_path)[0].admission
    late_joiners, fleet = admission._late_joiners, fleet_of(admission)
    tasks = []
    for name in ("b", "c", "d"):
        admission.registration.instances[name] = name.encode()
        tasks.append(asyncio.create_task(late_joiners.wait(late_joiners.record(name))))
    await asyncio.sleep(0)
    waits = Waits({"b", "c"})
    grown = []
    for _ in range(4):
        before = len(waits.asked)
        grown.append(await admission.admit_late_joiners(fleet, cast(Algorithm, waits)))
        assert len(waits.asked) <= before + 1
    assert waits.asked == ["b", "c", "d"]
    assert grown == [False, False, True, False]
    assert list(fleet.members) == ["a", "d"]
    tasks.append(asyncio.create_task(late_joiners.wait(late_joiners.record("b"))))  # comes again
    await asyncio.sleep(0)
    assert not await admission.admit_late_joiners(fleet, cast(Algorithm, waits))
    assert waits.asked == ["b", "c", "d"], "not before its pause is over"
    assert late_joiners.pause("b") > 0.1
    late_joiners.end()
    await asyncio.gather(*tasks)


async def test_a_newcomer_that_is_refused_at_once_hears_why(tmp_path: Path) -> None:
    class Refuses:
        async def admit(self, cohort: Cohort) -> None:
            raise JoinRefusedError("too few samples")

    made, late_joiner = newcomer(tmp_path)
    admission = made.admission
    waiting = asyncio.create_task(admission._admit(late_joiner, pb.Hello(shard=shard())))
    await asyncio.sleep(0)
    assert not await admission.admit_late_joiners(fleet_of(admission), cast(Algorithm, Refuses()))
    assert isinstance(await waiting, pb.Farewell)


async def test_a_newcomer_may_come_back_with_other_data_until_it_takes_part(tmp_path: Path) -> None:
    made, late_joiner = newcomer(tmp_path)
    admission = made.admission
    first = asyncio.create_task(admission._admit(late_joiner, pb.Hello(shard=shard())))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(admission._admit(late_joiner, pb.Hello(shard=shard(samples=41))))
    await asyncio.sleep(0)
    fleet = fleet_of(admission)
    assert await admission.admit_late_joiners(fleet, cast(Algorithm, Waits(set())))
    assert isinstance(await again, pb.Welcome)
    assert fleet.members["b"].shard == shard(samples=41)
    with raises(JoinRefusedError):
        admission.data.check(late_joiner, shard())


def fleet_of(admission: Admission) -> Fleet:
    return Fleet(members=admission.members, seed=0, participation=Participation())


def newcomer(folder: Path) -> tuple[Coordinator, ClientRecord]:
    """Return a run with one client that has begun, and the record of a late joiner."""
    made = run_of(folder, data={"name": "own"}, participation={"late_joiners": "admit"})
    made.admission.members["a"] = ClientRecord("a", shard())
    made.admission._described.set()
    made.admission.registration.instances["b"] = b"process"
    return made, made.admission._late_joiners.record("b")


async def test_a_resumed_run_waits_for_a_client_whose_backlog_would_stop_it(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    behind = ClientRecord("a", shard())
    behind.post("train", 1, pb.TELL, Body(encode({"model": np.zeros(100)})))
    saved = checkpoints.take(folder.id, 1, 0, Algorithm.State(np.zeros(4)), {"a": behind})
    settings = validate(SETTINGS | {"data": {"name": "digits"}, "network": {"promised_bytes": 800}})
    admission = Coordinator(settings, folder, resume=saved).admission
    gathering = asyncio.create_task(admission.gather())
    await asyncio.wait([gathering], timeout=0.2)
    assert not gathering.done()
    member = admission.members["a"]
    member.resolve(next(member.pending_tells()))
    await asyncio.wait_for(gathering, 60)


class Ends:
    """Rounds that end as a test wants, and what fails when they are closed."""

    def __init__(self, error: FenchelError | None, closing: FenchelError | None = None) -> None:
        self.done, self.ended = 3, ""
        self.figures: dict[str, float] = {}
        self.error = error
        self.closing = closing
        self.begun: Callable[[], None] = lambda: None
        self.closed: list[bool] = []

    async def go(self, *, fresh: bool) -> None:
        self.begun()
        if self.error is not None:
            raise self.error

    async def close(self, *, completed: bool) -> None:
        self.closed.append(completed)
        if self.closing is not None:
            raise self.closing


def full(path: Path) -> StorageError:
    """Return what is said of a file for which there is no room."""
    with raises(StorageError) as told, writing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    return told.value


def ending(made: Coordinator, rounds: Ends, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    async def gathered() -> None: ...

    monkeypatch.setattr(made.admission, "gather", gathered)
    monkeypatch.setattr(made, "_rounds", lambda: cast(Rounds, rounds))
    return made


async def ended_by(made: Coordinator) -> FenchelError:
    """Conduct a run as the service does whose clients are long gone; return the error that a person is shown."""
    for member in made.admission.members.values():
        member.changed_unix -= 3600
    try:
        try:
            await made.run()
        finally:
            await made.farewells()
    except FenchelError as shown:
        return shown
    raise AssertionError("it ended well")


async def test_of_many_files_that_a_full_disk_fails_the_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = coordinator(tmp_path)
    first, table = full(made.folder.metrics), full(made.folder.calls)
    rounds = Ends(first, table)

    def no_room() -> None:
        raise full(made.folder.disclosures)

    monkeypatch.setattr(made.disclosures, "save", no_room)
    rounds.begun = made.folder.summary.mkdir  # so that it cannot be replaced
    with caplog.at_level(logging.ERROR, "fenchel.server"):
        assert await ended_by(ending(made, rounds, monkeypatch)) is first
    assert rounds.closed == [False]
    assert [Path(each.partition(":")[0]) for each in caplog.messages] == [
        made.folder.calls,
        made.folder.summary,
        made.folder.disclosures,
        made.folder.disclosures,
    ]


async def test_a_run_that_cannot_write_its_last_files_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = coordinator(tmp_path)
    table = full(made.folder.calls)
    rounds = Ends(None, table)
    assert await ended_by(ending(made, rounds, monkeypatch)) is table
    assert rounds.closed == [True, False]
    assert made.admission._over is not None
    assert not made.admission._over.completed
    assert '"completed": false' in made.folder.summary.read_text()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            full(Path("/srv/fenchel/runs/r/metrics.arrows")),
            "the server cannot write its files (No space left on device)",
        ),
        (
            CheckpointError("/srv/fenchel/runs/r/calls.parquet: cannot be read as a table"),
            "the server cannot read a file of the run",
        ),
        (RunStoppedError("round 3: enough is enough"), "round 3: enough is enough"),
    ],
)
async def test_clients_hear_of_the_servers_files_only_that_they_are_to_blame(
    error: FenchelError, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, member = coordinator(tmp_path)
    heard = member.queue = asyncio.Queue()
    ending(made, Ends(error), monkeypatch)
    with raises(FenchelError):
        await made.run()
    farewell = heard.get_nowait()
    assert isinstance(farewell, pb.Farewell)
    assert farewell.reason.startswith(told)
    assert "/srv" not in farewell.reason
    with raises(FenchelError) as late:
        await made.admission.join(pb.JoinRequest(protocol=PROTOCOL, client="c", instance=b"1"))
    assert "/srv" not in str(late.value)
    assert str(error)[:20] in made.folder.summary.read_text()


def joining(client: str) -> pb.JoinRequest:
    return pb.JoinRequest(protocol=PROTOCOL, client=client, instance=client.encode())


async def farewell_to(made: Coordinator, client: str) -> pb.Farewell:
    """Return what a client hears that joins again and opens a stream."""
    await made.admission.join(joining(client))
    stream = MemoryStream()
    serving = asyncio.create_task(made.admission.work(client, client.encode(), stream.other_side()))
    for frame in frames(pb.Hello()):
        await stream.write(frame)
    answer = await stream.read()
    stream.outgoing.put_nowait(None)
    await serving
    assert answer is not None
    head = parse(answer).head
    assert isinstance(head, pb.Farewell)
    return head


async def test_a_client_that_was_away_at_the_end_hears_of_it_before_the_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, member = coordinator(tmp_path)
    other = made.admission.members["a"]
    other.mark_lost("its journal is gone")  # whom the server does not wait for
    await asyncio.gather(*(made.admission.join(joining(name)) for name in "ab"))
    await ending(made, Ends(None), monkeypatch).run()
    ended = asyncio.create_task(made.farewells())
    await asyncio.sleep(0)
    assert not ended.done()
    assert (await farewell_to(made, member.name)).completed
    await ended
    heads = json.loads(made.folder.disclosures.read_text())["heads"]
    assert [head["times"] for head in heads if head["message"] == "Farewell"] == [1]
    assert not (await farewell_to(made, other.name)).completed


async def test_the_server_does_not_wait_for_clients_that_were_long_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = coordinator(tmp_path)
    for member in made.admission.members.values():
        member.changed_unix -= 3600
    await ending(made, Ends(None), monkeypatch).run()
    await made.farewells()
    assert not made.admission._returning


async def test_a_run_that_is_cancelled_for_a_client_says_why_and_waits_for_no_process_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, member = coordinator(tmp_path)
    made.admission.members["a"].mark_lost("its journal is gone")  # whom the server does not wait for
    rounds = Ends(None)
    waiting = asyncio.Event()

    async def go(*, fresh: bool) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rounds, "go", go)
    conducting = asyncio.create_task(ending(made, rounds, monkeypatch).run())
    await waiting.wait()
    made.stop_because_of(DataError("no number", source="b.csv"), ["b"])
    conducting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await conducting
    assert json.loads(made.folder.summary.read_text())["reason"] == "b.csv: no number"
    assert member.farewell is not None
    assert "b.csv" not in member.farewell.reason
    assert not made.admission._returning


async def test_a_client_that_waits_for_the_others_at_the_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run_of(tmp_path, data={"name": "digits"})
    made.admission.members.update(a=ClientRecord("a"), b=ClientRecord("b"))
    made.admission.members["b"].changed_unix -= 3600
    await asyncio.gather(*(made.admission.join(joining(name)) for name in "ab"))
    stream = MemoryStream()
    serving = asyncio.create_task(made.admission.work("a", b"a", stream.other_side()))
    for frame in frames(pb.Hello(shard=shard())):
        await stream.write(frame)
    while made.admission.members["a"].shard is None:
        await asyncio.sleep(0)
    made.admission.end(pb.Farewell(reason="another client has failed"))
    answer = await stream.read()
    stream.outgoing.put_nowait(None)
    await serving
    assert answer is not None
    assert parse(answer).head == pb.Farewell(reason="another client has failed")
    assert not made.admission._returning


class Counting(Observer):
    """Notes how many clients are ready."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int | None]] = []

    def joined(self, present: int, expected: int | None) -> None:
        self.ready.append((present, expected))


async def connected(made: Coordinator, client: str) -> tuple[MemoryStream, asyncio.Task[None]]:
    """Open a stream of a client, and wait until the client is welcome."""
    stream = MemoryStream()
    serving = asyncio.create_task(made.admission.work(client, client.encode(), stream.other_side()))
    for frame in frames(pb.Hello(shard=shard())):
        await stream.write(frame)
    answer = await stream.read()
    assert answer is not None
    assert isinstance(parse(answer).head, pb.Welcome)
    return stream, serving


async def test_the_log_says_that_a_client_of_the_run_is_gone_and_that_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watching = Counting()
    settings = validate(SETTINGS | {"data": {"name": "digits"}, "clients": 1})
    made = Coordinator(settings, RunFolder.create(tmp_path, "run"), observer=watching)
    made.admission.members.update(a=ClientRecord("a"))
    await made.admission.join(joining("a"))
    stream, serving = await connected(made, "a")
    stream.outgoing.put_nowait(None)
    await serving
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    gone = "client a disconnected; its replies count again once it is back"
    assert said == [("INFO", "client a is connected"), ("WARNING", gone)]
    stream, serving = await connected(made, "a")
    assert caplog.messages[2:] == ["client a is connected again"]
    assert watching.ready == [(1, 1), (1, 1)]
    made.admission.end(pb.Farewell(completed=True))
    stream.outgoing.put_nowait(None)
    await serving
    assert len(caplog.messages) == 3, "a client that leaves at the end is not missed"


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_client_that_stopped_a_run_is_asked_anew_what_it_has(policy: str, tmp_path: Path) -> None:
    kept = {"shard": {"samples": "40", "features": "64"}, "base": 3, "lost": "its journal is gone"}
    resumed = Checkpoint(
        run="run", round=3, epoch=0, values={}, members={"a": kept, "b": kept | {"lost": None}}, promises=()
    )
    made = Coordinator(
        validate(SETTINGS | {"data": {"name": "digits"}, "participation": {"on_lost_state": policy}}),
        RunFolder.create(tmp_path, "run"),
        resume=resumed,
    )
    lost = [name for name, member in made.admission.members.items() if member.lost is not None]
    assert lost == ([] if policy == "stop" else ["a"])


def test_the_summary_is_synced_so_that_no_loss_of_power_leaves_it_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    folder = RunFolder.create(tmp_path, "run")
    asyncio.run(run_in_process(validate(SETTINGS | {"data": {"name": "digits"}}), folder))
    assert f"{folder.summary.name}.new" in synced
