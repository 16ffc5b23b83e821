"""The server's account of uploads: each with the noise that it had, also if a resumed run has another one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.errors import CheckpointError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import validate
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.preflight import no_samples
from fenchel.server.privacy_budget import PrivacyBudget
from tests.messages import raises

BEFORE, NOW = Release(2.0), Release(4.0)


@pytest.fixture
def budget() -> PrivacyBudget:
    settings = validate(
        {
            "rounds": 9,
            "clients": 3,
            "data": {"name": "digits"},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": 4, "step_size": 0.1},
            "differential_privacy": {"mechanism": "clip-update", "clip": 0.1, "noise_multiplier": 4.0},
        }
    )
    members = {name: ClientRecord(name) for name in "abc"}
    return PrivacyBudget(settings, build_objective(settings.objective, no_samples(64, 10)), members)


def calls(*rows: tuple[int, str, str]) -> Any:
    return pa.table(dict(zip(("round", "kind", "client"), map(list, zip(*rows, strict=True)), strict=True)))


def test_the_largest_loss_is_that_of_the_client_whose_uploads_cost_most(budget: PrivacyBudget) -> None:
    budget.enrol(dict.fromkeys("abc", 100))
    assert {member.release for member in budget.members.values()} == {NOW}
    uploads = {"a": Counter({BEFORE: 3, NOW: 1}), "b": Counter({BEFORE: 1, NOW: 9}), "c": Counter({NOW: 8})}
    for name, made in uploads.items():
        budget.members[name].uploads.update(made)
    for more in (0, 1):
        each = [epsilon(made + Counter({NOW: more}), 1e-5) for made in uploads.values()]
        assert budget.epsilon("pld-wor", more) == pytest.approx(max(each), rel=1e-9)
    assert budget.figures()["privacy_uploads"] == 10
    assert budget.groups()[0]["uploads"] == 10


def test_a_resumed_run_counts_what_was_asked_after_its_checkpoint_with_the_noise_of_then(budget: PrivacyBudget) -> None:
    for member in budget.members.values():
        member.release = BEFORE
        member.uploads[BEFORE] = 2
    rows = [(0, "ask", "a"), (2, "ask", "a"), (3, "ask", "a"), (3, "tell", "b"), (4, "ask", "a"), (4, "ask", "b")]
    rows += [(4, "ask", "a client that joined after the checkpoint")]
    budget.resume(calls(*rows), 2)
    budget.enrol(dict.fromkeys("abc", 100))
    assert [budget.members[name].uploads for name in "abc"] == [{BEFORE: 4}, {BEFORE: 3}, {BEFORE: 2}]


def test_epsilons_of_earlier_rounds_are_not_kept(budget: PrivacyBudget) -> None:
    budget.enrol(dict.fromkeys("abc", 100))
    kept, known = [], []
    for t in range(1, 8):
        known.append(budget.epsilon("pld-wor", more=1))
        budget.count(SimpleNamespace(kind=pb.ASK, round=t, client=client) for client in "abc")  # type: ignore[misc]
        assert budget.figures()["epsilon_pld"] == known[-1]
        kept.append(len(budget._epsilons))
    assert kept[-1] == kept[2]
    assert known == sorted(set(known))


def test_a_checkpoint_without_the_noise_of_its_uploads_is_refused(budget: PrivacyBudget) -> None:
    budget.resume(calls((0, "ask", "a"), (1, "tell", "a")), 0)
    with raises(CheckpointError):
        budget.resume(calls((1, "ask", "a")), 1)
