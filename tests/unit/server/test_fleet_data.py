"""Checks that the data of a run's clients fit each other.

The server knows the shape of a named data set itself. Names of classes and columns reach no other client.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fenchel.client.session import ClientData
from fenchel.common.data.shard import Shard, digest_of
from fenchel.common.data.source import DataSource
from fenchel.common.errors import JoinRefusedError
from fenchel.common.settings.data import DataSettings
from fenchel.common.wire.frames import frames
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.membership.fleet_data import FleetData
from tests.messages import raises


def shard(**changes: Any) -> pb.ShardDescription:
    return pb.ShardDescription(**({"samples": 40, "features": 64, "classes": 10, "features_held": 64} | changes))


def of_run(data: dict[str, Any], first: pb.ShardDescription) -> tuple[FleetData, ClientRecord, ClientRecord]:
    """Return the data of a run to which one client has described its own, and the two clients."""
    one, other = ClientRecord("a"), ClientRecord("b")
    settings = DataSettings(**data)
    source = None if data["name"] == "own" else DataSource.open(settings, 0)
    fleet_data = FleetData({"a": one, "b": other}, source, settings)
    fleet_data.describe(one, first)
    return fleet_data, one, other


def test_who_comes_first_does_not_decide_what_a_named_data_set_is_like() -> None:
    data, _, member = of_run({"name": "digits"}, shard(features=65, class_names=["x"]))
    data.check(member, shard())
    for wrong in (shard(features=65), shard(classes=2)):
        with raises(JoinRefusedError):
            data.check(member, wrong)


@pytest.mark.parametrize("named", [{"name": "own"}, {"name": "digits"}])
@pytest.mark.parametrize("change", [{"samples": 41}, {"features_held": 60}, {"class_names": ["x"] * 10}])
def test_a_client_that_comes_back_with_other_data_is_refused(named: dict[str, Any], change: dict[str, Any]) -> None:
    data, first, _ = of_run(named, shard())
    data.check(first, shard())
    with raises(JoinRefusedError) as refusal:
        data.check(first, shard(**change))
    assert "'x'" not in str(refusal.value)


def test_a_client_that_comes_back_with_other_columns_is_refused_also_if_it_is_alone() -> None:
    def with_columns(*names: str) -> pb.ShardDescription:
        return shard(features=2, features_held=2, column_names=names, column_digest=digest_of(names))

    data, first, _ = of_run({"name": "own"}, with_columns("age", "weight"))
    data.check(first, with_columns("age", "weight"))
    with raises(JoinRefusedError):
        data.check(first, with_columns("age", "height"))


def test_names_of_classes_are_told_to_nobody() -> None:
    two = shard(classes=2, class_names=["healthy", "rare disease"])
    data, _, member = of_run({"name": "own"}, two)
    data.check(member, two)
    with raises(JoinRefusedError) as refusal:
        data.check(member, shard(classes=2, class_names=["well", "ill"]))
    assert not [name for name in ("healthy", "rare", "well", "ill ", "'ill'") if name in str(refusal.value)]


@pytest.mark.parametrize("names", [["A" * 201], ["A"] * 10_001], ids=["a long one", "many"])
def test_names_of_classes_have_a_limit(names: list[str]) -> None:
    for named in ({"name": "own"}, {"name": "digits"}):
        data, _, member = of_run(named, shard())
        with raises(JoinRefusedError) as refusal:
            data.check(member, shard(class_names=names))
        assert len(str(refusal.value)) < 200


COLUMNS = ["age", "weight", "pulse"]


def table(*names: str) -> pb.ShardDescription:
    features = np.zeros((40, len(names)))
    found = Shard(features, np.zeros(40, np.int64), 2, len(names), np.arange(40), column_names=names)
    return ClientData(found).description()


OWN = {"name": "own", "classes": [0, 1]}


@pytest.mark.parametrize("names", [["age", "pulse", "weight"], ["age", "mass", "pulse"]], ids=["order", "names"])
def test_columns_of_own_files_must_be_the_same_and_their_names_are_told_to_nobody(names: list[str]) -> None:
    data, _, member = of_run(OWN, table(*COLUMNS))
    data.check(member, table(*COLUMNS))
    with raises(JoinRefusedError) as refusal:
        data.check(member, table(*names))
    assert not [name for name in {*COLUMNS, *names} if name in str(refusal.value)]


def test_columns_in_which_files_differ_are_named_to_the_server_alone() -> None:
    data, _, member = of_run(OWN | {"bias": 1.0}, biased("age", "weight"))
    with raises(JoinRefusedError) as refusal:
        data.check(member, biased("age", "pulse", "mass\n"))
    assert "3 columns of features, not 2 " in str(refusal.value)
    assert refusal.value.confidential.endswith(
        "columns that earlier files lack: pulse, mass ; columns of earlier files that it lacks: weight"
    )
    assert not [name for name in ("age", "weight", "pulse", "mass") if name in str(refusal.value)]


def test_the_bias_is_not_counted_as_a_feature_of_a_file() -> None:
    data, _, member = of_run(OWN | {"bias": 1.0}, shard(features=65))
    with raises(JoinRefusedError) as refusal:
        data.check(member, shard(features=14))
    assert "client b has 13 features, but client a has 64; " in str(refusal.value)


def biased(*names: str) -> pb.ShardDescription:
    """Return the description of a table with these columns and a bias."""
    described = table(*names)
    described.features += 1
    return described


def test_a_file_without_names_of_columns_fits_those_with_names() -> None:
    data, _, member = of_run(OWN, table(*COLUMNS))
    data.check(member, shard(features=3, features_held=3, classes=2))


def test_names_of_columns_are_kept_once() -> None:
    data, first, member = of_run(OWN, table(*COLUMNS))
    data.describe(member, table(*COLUMNS))
    assert first.shard is not None
    assert tuple(first.shard.column_names) == tuple(COLUMNS)
    assert member.shard is not None
    assert not member.shard.column_names
    assert data.column_names == tuple(COLUMNS)
    assert data.preparation().columns == tuple(COLUMNS)


def test_names_of_columns_that_are_too_many_to_be_sent_are_compared_nevertheless() -> None:
    names = [f"cg{number:08}" for number in range(60_000)]
    described = table(*names)
    assert described.ByteSize() < 200
    assert list(frames(pb.Hello(shard=described)))
    data, _, member = of_run(OWN, described)
    data.check(member, table(*names))
    with raises(JoinRefusedError):
        data.check(member, table(*names[:-2], names[-1], names[-2]))
    assert data.preparation().columns is None
    assert table(*names[:30_000]).column_names[:2] == names[:2]


@pytest.mark.parametrize("names", [["A" * (1 << 20)], ["A", "B"], [""] * (1 << 19)], ids=["long", "two", "many"])
def test_names_of_columns_that_no_client_sends_are_refused(names: list[str]) -> None:
    data, _, member = of_run(OWN, table("age"))
    one = {"features": 1, "features_held": 1, "classes": 2}
    for wrong in ({"column_names": names}, {"column_digest": b"A" * 33}, {"column_names": ["age"]}):
        with raises(JoinRefusedError):
            data.check(member, shard(**one, **wrong))


def test_of_a_named_data_set_no_names_of_columns_are_kept() -> None:
    data, _, member = of_run({"name": "digits"}, shard())
    data.describe(member, shard(column_names=["A"], column_digest=b"1"))
    assert member.shard is not None
    assert not member.shard.column_names
    assert not data.column_names
