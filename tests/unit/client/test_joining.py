"""One way to join: in one process, too, a client's limits stand between the server's settings and its session."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import fenchel
from fenchel.client.joining import Participant, session_of
from fenchel.client.local_data import DataProvider, LocalData, OwnFile, OwnShard
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.data.shard import Shard
from fenchel.common.errors import FenchelError, SettingsError, WireError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.proto import fenchel_pb2 as pb
from fenchel.testing import Federation
from tests.messages import raises

OWN = {
    "name": "own",
    "rounds": 3,
    "clients": 2,
    "data": {"name": "own", "classes": [0, 1]},
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "fedavg", "step_size": 0.5, "local_epochs": 1, "batch_size": 4},
}


def arrays(client: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(client)
    labels = rng.integers(0, 2, 20)
    return rng.normal(size=(20, 3)) + labels[:, None], labels


def shard(client: int, kind: Any = np.asarray) -> Shard:
    features, labels = arrays(client)
    return Shard(kind(features), labels, classes=2, total_features=3, samples_held=np.arange(20))


def reply(settings: RunSettings, run: str = "run-1") -> pb.JoinReply:
    return pb.JoinReply(run=run, settings=settings.to_json(), assignment=pb.Assignment(index=0, clients=2))


@dataclass
class WithFiles(Federation):
    """A federation whose clients bring a file each."""

    def participant(self, name: str, local_data: DataProvider) -> Participant:
        file = self.folder.path / f"{name}.npz"
        features, labels = arrays(int(name[-1]))
        np.savez(file, X=features, y=labels)
        return replace(super().participant(name, local_data), local_data=OwnFile(file))


def test_shards_give_the_run_that_files_of_the_same_samples_give(tmp_path: Path) -> None:
    settings = validate(OWN | {"data": {"name": "own", "classes": [0, 1], "holdout": 0.2}})
    run = fenchel.up(settings, in_process=True, data=[shard(client) for client in range(2)], runs=tmp_path)
    assert run.metrics["objective"].notna().all()
    model = WithFiles(settings, RunFolder.create(tmp_path, "files")).run()
    assert run.model.tobytes() == model.tobytes()


def test_shards_are_for_runs_in_this_process_and_for_all_clients(tmp_path: Path) -> None:
    shards = [shard(client) for client in range(2)]
    with raises(SettingsError, key="data"):
        fenchel.up(OWN, data=shards, runs=tmp_path)
    with raises(SettingsError, key="clients"):
        fenchel.up(OWN, in_process=True, data=shards[:1], clients=2, runs=tmp_path)
    with raises(SettingsError, key="data"):
        fenchel.up(OWN, in_process=True, data=[shards[0], arrays(1)], runs=tmp_path)


def test_what_stands_for_a_shard_changes_with_any_number_of_it() -> None:
    settings = validate(OWN)
    identities = set()
    for kind in (np.asarray, sp.csr_array):
        one = shard(0, kind)
        assert OwnShard(one).identity(settings, "a") == OwnShard(shard(0, kind)).identity(settings, "b")
        other = replace(one, labels=1 - one.labels)
        identities |= {OwnShard(each).identity(settings, "a") for each in (one, other, shard(1, kind))}
    assert len(identities) == 6


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"data": {"name": "digits"}, "objective": {"kind": "softmax"}}, SettingsError),
        ({"network": {"max_message_bytes": 9 << 30}}, SettingsError),
        ({"evaluation": {"histograms": 2}}, SettingsError),
    ],
)
def test_a_session_of_a_shard_passes_the_limits_of_who_started_its_client(
    change: dict[str, Any], error: type[FenchelError]
) -> None:
    who = Participant(name="a", local_data=OwnShard(shard(0)))
    assert session_of(who, reply(validate(OWN))).client == "a"
    with raises(error):
        session_of(who, reply(validate(OWN | change)))


def test_limits_that_agree_to_settings_allow_all_that_these_ask_for_and_no_more() -> None:
    wide = validate(OWN | {"network": {"max_message_bytes": 9 << 30}, "evaluation": {"histograms": 2}})
    for settings, allowed in ((wide, True), (validate(OWN), False)):
        who = Participant(
            name="a", local_data=OwnShard(shard(0)), trust_limits=TrustLimits.agreeing_to(settings), state_folder=None
        )
        if allowed:
            session_of(who, reply(wide))
        else:
            with raises(SettingsError):
                session_of(who, reply(wide))


def test_a_run_whose_id_leads_elsewhere_is_refused_before_anything_is_read() -> None:
    who = Participant(name="a", local_data=LocalData())
    with raises(WireError):
        session_of(who, pb.JoinReply(run="../../etc", settings=json.dumps({})))
