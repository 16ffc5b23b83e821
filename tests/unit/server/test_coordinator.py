"""Whose data fit a run: what a named data set is like the server knows itself; names of classes are nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.run_folder import RunFolder
from common.settings.run import validate
from proto import fenchel_pb2 as pb
from server.coordinator import Coordinator
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
