"""Whose data fit a run, and how newcomers enter it.

What a named data set is like the server knows itself; names of classes are nobody else's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from common.errors import TooFewRepliesError
from common.run_folder import RunFolder
from common.settings.participation import Participation
from common.settings.run import validate
from proto import fenchel_pb2 as pb
from server.algorithm import Algorithm
from server.coordinator import Coordinator
from server.fleet import Cohort, Fleet
from server.member import Member

SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "clients": 2,
    "algorithm": {"name": "fedavg"},
    "objective": {"kind": "softmax"},
}


def coordinator(folder: Path, data: dict[str, Any], first: pb.ShardDescription) -> tuple[Coordinator, Member]:
    """Return a run to which one client has described its data, and the other client."""
    made = Coordinator(validate(SETTINGS | {"data": data}), RunFolder.create(folder, "run"))
    made.members = {"a": Member("a", 0, first), "b": Member("b", 1)}
    return made, made.members["b"]


def shard(**changes: Any) -> pb.ShardDescription:
    return pb.ShardDescription(
        **({"samples": 40, "features": 64, "classes": 10, "features_held": 64} | changes)
    )


def test_who_comes_first_does_not_decide_what_a_named_data_set_is_like(tmp_path: Path) -> None:
    made, member = coordinator(tmp_path, {"name": "digits"}, shard(features=65, class_names=["x"]))
    assert made._misfit(member, shard()) == ""
    assert "features 65, but the data of this run have 64" in made._misfit(member, shard(features=65))
    assert "classes 2, but the data of this run have 10" in made._misfit(member, shard(classes=2))


def test_names_of_classes_are_told_to_nobody(tmp_path: Path) -> None:
    two = shard(classes=2, class_names=["healthy", "rare disease"])
    made, member = coordinator(tmp_path, {"name": "own"}, two)
    assert made._misfit(member, two) == ""
    told = made._misfit(member, shard(classes=2, class_names=["well", "ill"]))
    assert "client b has other names of classes than client a; all clients need the same" in told
    assert not [name for name in ("healthy", "rare", "well", "ill ", "'ill'") if name in told]


@pytest.mark.parametrize("names", [["A" * 201], ["A"] * 10_001], ids=["a long one", "many"])
def test_names_of_classes_have_a_limit(names: list[str], tmp_path: Path) -> None:
    for place, data in enumerate(({"name": "own"}, {"name": "digits"})):
        made, member = coordinator(tmp_path / str(place), data, shard())
        told = made._misfit(member, shard(class_names=names))
        assert "names of classes, or one of more than 200 characters" in told
        assert len(told) < 200


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


async def test_newcomers_that_do_not_answer_hold_up_each_border_once_and_then_must_wait(
    tmp_path: Path,
) -> None:
    late = {"late_joiners": "admit"}
    made = Coordinator(
        validate(SETTINGS | {"data": {"name": "own"}, "participation": late}),
        RunFolder.create(tmp_path, "run"),
    )
    made.members = {"a": Member("a", 0, shard())}
    fleet = Fleet(made.members, 0, Participation(), 1 << 20)
    tasks = []
    for name in ("b", "c", "d"):
        made.enrolment.instances[name] = name.encode()
        tasks.append(asyncio.create_task(made._newcomers.wait(made._newcomers.member(name))))
    await asyncio.sleep(0)
    waits = Waits({"b", "c"})
    grown = []
    for _ in range(4):
        before = len(waits.asked)
        grown.append(await made._admission(fleet, cast(Algorithm, waits)))
        assert len(waits.asked) <= before + 1
    assert waits.asked == ["b", "c", "d"]
    assert grown == [False, False, True, False]
    assert list(fleet.members) == ["a", "d"]
    tasks.append(asyncio.create_task(made._newcomers.wait(made._newcomers.member("b"))))  # comes again
    await asyncio.sleep(0)
    assert not await made._admission(fleet, cast(Algorithm, waits))
    assert waits.asked == ["b", "c", "d"], "not before its pause is over"
    assert made._newcomers.pause("b") > 0.1
    made._newcomers.end()
    await asyncio.gather(*tasks)
