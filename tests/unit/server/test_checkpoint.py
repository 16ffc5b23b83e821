"""A checkpoint gives back the state, the clients and the promises as they were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.accounting.accountant import Release
from fenchel.common.arrays import Vector
from fenchel.common.errors import CheckpointError
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import Values
from fenchel.fleet.client_record import EPOCH_BITS, ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as module
from fenchel.server.checkpoint import Checkpoint, RoundSnapshot, before_last, load, newest, renew, save, take
from tests.messages import raises
from tests.unit.server.conftest import MakeMember


@dataclass
class State:
    model: Vector
    trace: list[float]


def state() -> State:
    return State(np.arange(3.0), [1.0, 2.0])


@pytest.fixture
def members(make_member: MakeMember) -> dict[str, ClientRecord]:
    return {name: make_member(name) for name in ["a", "b", "c"]}


def folder_of(parent: Path) -> RunFolder:
    folder = RunFolder(parent / "run-1")
    folder.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return folder


def through_a_file(checkpoint: Checkpoint, parent: Path) -> Checkpoint:
    folder = folder_of(parent)
    save(folder, checkpoint, sync=False)
    return load(folder.checkpoint)


def content(call: Any) -> tuple[bytes, bytes]:
    return call.body.payload, call.body.content()


def test_state_and_clients_come_back(members: dict[str, ClientRecord], tmp_path: Path) -> None:
    members["a"].base = 7
    members["b"].lost = "its journal is gone"
    members["b"].spent = "its privacy budget is spent"
    members["c"].shard = pb.ShardDescription(samples=1 << 40, class_names=["yes", "no"])
    members["a"].release = Release(1 / 3, 0.1)
    members["a"].uploads.update({Release(2.0): 5, Release(1 / 3, 0.1): 2})
    back = through_a_file(take("run-1", 4, 2, state(), members), tmp_path)
    assert (back.run, back.round, back.epoch) == ("run-1", 4, 2)
    thawed = back.state(State)
    np.testing.assert_array_equal(thawed.model, [0.0, 1.0, 2.0])
    assert thawed.trace == [1.0, 2.0]
    restored = back.restore()
    assert list(restored) == ["a", "b", "c"]
    for name, member in restored.items():
        mine = members[name]
        assert (member.base, member.lost) == (mine.base, mine.lost)
        assert member.spent == mine.spent
        assert member.shard == mine.shard
        assert (member.release, member.uploads) == (mine.release, mine.uploads)
        assert member.outstanding == {}
        assert not member.connected


def test_instructions_of_a_resumed_run_are_numbered_above_all_earlier_ones(
    members: dict[str, ClientRecord], tmp_path: Path
) -> None:
    numbers = []
    for epoch in range(3):
        members = through_a_file(take("run-1", 4, epoch, state(), members), tmp_path).restore()
        numbers.append(members["a"].next_sequence)
        members["a"].next_sequence += 1000
    assert numbers == [(epoch + 1 << EPOCH_BITS) + 1 for epoch in range(3)]


VALUES: list[Values] = [
    {"center": np.arange(5.0), "round": 3},
    {"round": 3, "note": "no arrays"},
    {},
    {"center": np.arange(300_000.0)},
]


@pytest.mark.parametrize("values", VALUES, ids=["arrays", "numbers", "nothing", "several frames"])
def test_promises_come_back_and_one_to_several_clients_is_stored_once(
    values: Values, members: dict[str, ClientRecord], tmp_path: Path
) -> None:
    shared, own = Body(encode(values)), Body(encode({"x": 1.0}))
    for member in members.values():
        member.post("shift", 4, pb.TELL, shared)
    members["b"].post("mark", 4, pb.TELL, own)
    checkpoint = through_a_file(take("run-1", 4, 0, state(), members), tmp_path)
    assert len([name for name in checkpoint.values if name.endswith("/body")]) == 2
    restored = checkpoint.restore()
    for name, member in restored.items():
        mine, back = list(members[name].pending_tells()), list(member.pending_tells())
        assert [(call.sequence, call.base, call.phase, call.round, call.kind) for call in back] == [
            (call.sequence, call.base, call.phase, call.round, call.kind) for call in mine
        ]
        assert [content(call) for call in back] == [content(call) for call in mine]
        assert member.base == members[name].base
    assert restored["a"].outstanding[1].body is restored["c"].outstanding[1].body
    again = through_a_file(take("run-1", 4, 1, state(), restored), tmp_path)
    assert again.promises == checkpoint.promises


def test_questions_are_not_kept(members: dict[str, ClientRecord], tmp_path: Path) -> None:
    call = members["a"].post("shift", 4, pb.TELL, Body(encode({})))
    members["a"].resolve(call)
    assert take("run-1", 4, 0, state(), members).promises == ()


def test_a_checkpoint_does_not_change_with_the_state_after_it(members: dict[str, ClientRecord]) -> None:
    current = state()
    checkpoint = take("run-1", 1, 0, current, members)
    current.model += 100
    assert not checkpoint.is_large
    np.testing.assert_array_equal(checkpoint.state(State).model, [0.0, 1.0, 2.0])


def test_what_is_held_of_a_border_does_not_change_with_the_run_after_it(
    members: dict[str, ClientRecord], tmp_path: Path
) -> None:
    current, body = state(), Body(encode({"x": np.arange(4.0)}))
    promise = members["b"].post("shift", 1, pb.TELL, body)
    snapshot = RoundSnapshot.of(1, current, members.values())
    current.model += 100
    current.trace.append(3.0)
    members["b"].resolve(promise)
    members["a"].base, members["c"].lost = 7, "its disk broke"
    back = through_a_file(snapshot.checkpoint("run-1", 0), tmp_path)
    np.testing.assert_array_equal(back.state(State).model, [0.0, 1.0, 2.0])
    assert back.state(State).trace == [1.0, 2.0]
    restored = back.restore()
    assert [(each.base, each.lost) for each in restored.values()] == [(0, None), (1, None), (0, None)]
    (kept,) = restored["b"].pending_tells()
    assert content(kept) == (body.payload, body.content())


def test_memory_of_an_earlier_border_is_used_again_where_it_fits(members: dict[str, ClientRecord]) -> None:
    current = state()
    first = RoundSnapshot.of(1, current, members.values())
    place = first.values["state/model"]
    current.model = current.model + 1
    second = RoundSnapshot.of(2, current, members.values(), first)
    assert second.values["state/model"] is place
    np.testing.assert_array_equal(place, current.model)
    others: tuple[Any, ...] = (np.arange(4.0), np.arange(3), np.arange(6.0)[::2])
    for other in others:
        current.model = other
        third = RoundSnapshot.of(3, current, members.values(), second)
        assert third.values["state/model"] is not place
        np.testing.assert_array_equal(third.values["state/model"], other)


def test_a_large_state_is_referred_to_and_says_so(
    members: dict[str, ClientRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGE_BYTES", 8)
    current = state()
    checkpoint = take("run-1", 1, 0, current, members)
    assert checkpoint.is_large
    assert checkpoint.values["state/model"] is current.model


def test_a_state_of_another_algorithm_is_refused(members: dict[str, ClientRecord]) -> None:
    @dataclass
    class Other:
        dual: Vector

    with raises(CheckpointError):
        take("run-1", 1, 0, state(), members).state(Other)


@pytest.mark.parametrize(
    "about", [None, "", "nonsense", "[]", "{}", '{"run": "r", "promises": [{"client": "a"}]}', "3"]
)
def test_a_file_that_is_no_checkpoint_is_refused(about: str | None, tmp_path: Path) -> None:
    store.write(tmp_path / "latest", {} if about is None else {"about": about})
    with raises(CheckpointError, file="latest"):
        load(tmp_path / "latest")


def test_half_of_a_surrogate_pair_is_damage(members: dict[str, ClientRecord], tmp_path: Path) -> None:
    checkpoint = take("run-1", 4, 0, state(), members)
    for kept in checkpoint.members.values():
        kept["shard"] = {"\ud800": 1}
    folder = folder_of(tmp_path)
    save(folder, checkpoint, sync=False)
    with raises(CheckpointError, file="latest"):
        load(folder.checkpoint)


@pytest.fixture
def written(members: dict[str, ClientRecord], tmp_path: Path) -> RunFolder:
    """Checkpoints after rounds 4 and 5; the second is the first of a resumed server."""
    folder = folder_of(tmp_path)
    save(folder, take("run-1", 4, 0, state(), members), sync=False)
    save(folder, take("run-1", 5, 1, state(), members), sync=False)
    assert newest(folder).round == 5
    return folder


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(
    written: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(written.checkpoint)
    found = newest(written)
    assert found.round == 4
    assert "checksum" in caplog.text
    assert "after round 4" in caplog.text
    # The damaged one had given out numbers of epoch 1 already.
    assert found.restore()["a"].next_sequence == (2 << EPOCH_BITS) + 1
    # The good one is the last one now, so that the next to be written does not push it out for the damaged one.
    assert load(written.checkpoint).round == 4
    save(written, found, sync=False)
    assert load(written.previous_checkpoint).round == 4


def test_one_can_go_back_behind_a_whole_checkpoint(written: RunFolder) -> None:
    assert before_last(written).round == 4
    assert load(written.checkpoint.with_name("damaged")).round == 5


def test_who_cannot_go_back_behind_a_whole_checkpoint_is_told_to_go_on_from_it(written: RunFolder) -> None:
    spoil(written.previous_checkpoint)
    with raises(CheckpointError):
        before_last(written)
    assert newest(written).round == 5
    spoil(written.checkpoint)
    with raises(CheckpointError):
        before_last(written)


def test_two_damaged_checkpoints_are_refused_and_left_as_they_are_and_so_is_one_or_none(written: RunFolder) -> None:
    spoil(written.checkpoint)
    spoil(written.previous_checkpoint)
    before = {path: path.read_bytes() for path in written.checkpoint.parent.iterdir()}
    with raises(CheckpointError):
        newest(written)
    assert {path: path.read_bytes() for path in written.checkpoint.parent.iterdir()} == before
    written.previous_checkpoint.unlink()
    with raises(CheckpointError):
        newest(written)
    written.checkpoint.unlink()
    with raises(CheckpointError):
        newest(written)


def test_a_resumed_run_keeps_the_checkpoint_before_the_one_it_began_with(
    members: dict[str, ClientRecord], written: RunFolder
) -> None:
    for epoch in (2, 3, 4):  # resumed, and stopped at once, three times
        renew(written, take("run-1", 5, epoch, state(), members), sync=False)
    assert load(written.checkpoint).round == 5
    numbers = newest(written).restore()["a"].next_sequence
    assert numbers == (5 << EPOCH_BITS) + 1
    spoil(written.checkpoint)
    found = newest(written)
    assert found.round == 4
    assert found.restore()["a"].next_sequence >= numbers


def test_a_run_that_has_one_checkpoint_can_be_resumed(members: dict[str, ClientRecord], tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    save(folder, take("run-1", 0, 0, state(), members), sync=False)
    renew(folder, take("run-1", 0, 1, state(), members), sync=False)
    assert load(folder.checkpoint).epoch == 1
    assert not folder.previous_checkpoint.exists()
