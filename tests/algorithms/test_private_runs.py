"""Differential privacy in whole runs: what is charged, what is refused, and when a run ends."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fenchel
from fenchel.algorithms.privacy_requirements import check_claim, check_uploads
from fenchel.client.joining import Participant
from fenchel.client.local_data import DataProvider, LocalData
from fenchel.client.privacy.ledger import LEDGER, Ledger
from fenchel.client.privacy.policy import Policy
from fenchel.client.privacy.protection import protection_of
from fenchel.client.session import Session
from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.arrays import Vector
from fenchel.common.errors import CheckpointError, PrivacyBudgetError, RunStoppedError, SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.outline import Received, outline
from fenchel.common.wire.payload import encode
from fenchel.proto import fenchel_pb2 as pb
from fenchel.testing import Faults, Federation, undisturbed
from tests.messages import raises
from tests.slow import rest_slow

SOUND = {"mechanism": "contractive", "clip": 0.5, "feature_norm": 1.0, "noise_multiplier": 2.0, "delta": 1e-4}
REPEATABLE = {"mechanism": "paper", "clip": 0.5, "noise_multiplier": 2.0, "fixed_seeds": True}
LOCAL = {"local_steps": 3, "batch_size": 5, "batches": "epoch", "step_size": 0.1}


TWO_CLASSES = {"name": "breast_cancer", "scale": ["standard", "unit-rows"]}


def private(privacy: dict[str, Any], **changes: Any) -> RunSettings:
    return validate(
        {
            "name": "private",
            "seed": 3,
            "rounds": 12,
            "clients": 4,
            "data": {"name": "digits", "scale": ["unit-interval", "unit-rows"], "partition": {"kind": "iid"}},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": "fedpdm", "penalty": 1.0, **LOCAL},
            "participation": {"sampler": {"kind": "fixed", "size": 2}},
            "differential_privacy": privacy,
        }
        | changes
    )


def ledgers(folder: RunFolder) -> dict[str, Ledger]:
    return {
        path.parent.name: Ledger(path, path.parent.name) for path in sorted(folder.journals.rglob("privacy.ledger"))
    }


def counted(folder: RunFolder) -> dict[str, int]:
    """How many replies of each client counted, by the record of the server."""
    calls = pq.read_table(folder.calls).to_pydict()
    replies = [
        client
        for client, kind, outcome in zip(calls["client"], calls["kind"], calls["outcome"], strict=True)
        if kind == "ask" and outcome == "counted"
    ]
    return {client: replies.count(client) for client in set(replies)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_whatever_fails_each_distinct_payload_is_charged_once_and_the_bits_are_the_same(
    seed: int, tmp_path: Path
) -> None:
    settings = private(REPEATABLE)
    calm = undisturbed(settings, tmp_path)
    folder = RunFolder.create(tmp_path, "disturbed")
    federation = Federation(settings, folder, Faults(random.Random(seed), breaks=3, kills=2, frames=12, lag=2))
    assert np.array_equal(federation.run(), calm)
    assert federation.broken + federation.killed > 0
    # Work that was lost and done again gave the same payload, which costs nothing.
    assert {client: ledger.uploads for client, ledger in ledgers(folder).items() if ledger.uploads} == counted(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedpdm"])
def test_with_noise_that_nobody_can_redo_each_payload_is_charged_once_too(name: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "disturbed")
    weights = {} if name == "fedpdm" else {"weighting": "uniform"}
    settings = private(SOUND, algorithm={"name": name, **LOCAL, **weights})
    faults = Faults(random.Random(1), breaks=3, kills=2, frames=12, lag=2)
    Federation(settings, folder, faults).run()
    assert {client: ledger.uploads for client, ledger in ledgers(folder).items() if ledger.uploads} == counted(folder)


@pytest.mark.slow
def test_two_runs_of_the_same_settings_have_noise_of_their_own(tmp_path: Path) -> None:
    settings = private(SOUND, rounds=2)
    first, second = (undisturbed(settings, tmp_path / name) for name in ("first", "second"))
    assert not np.array_equal(first, second)


def test_the_figures_of_a_run_are_those_of_the_accountant(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "figures")
    Federation(private(SOUND), folder).run()
    rows = pq.read_table(folder.metrics).to_pydict()
    most = int(rows["privacy_uploads"][-1])
    assert most == max(counted(folder).values())
    samples = 1437 / 4  # digits for training, in equal parts
    release = Release(2.0, LOCAL["local_steps"] * LOCAL["batch_size"] / samples)  # type: ignore[operator]
    assert rows["epsilon_pld"][-1] == pytest.approx(epsilon({release: most}, 1e-4), rel=0.02)
    assert rows["epsilon_rdp"][-1] == pytest.approx(epsilon({release: most}, 1e-4, "rdp-wor"), rel=0.02)
    assert rows["epsilon_pld"] == sorted(rows["epsilon_pld"]), "it only grows"
    assert {ledger.uploads for ledger in ledgers(folder).values()} == set(counted(folder).values())


def test_a_run_that_is_resumed_with_other_noise_counts_each_upload_with_the_noise_that_it_had(tmp_path: Path) -> None:
    run = fenchel.up(private(SOUND, rounds=4), in_process=True, runs=tmp_path)
    settings = run.path / "settings.yaml"
    changed = settings.read_text().replace("noise_multiplier: 2.0", "noise_multiplier: 4.0")
    settings.write_text(changed.replace("rounds: 4", "rounds: 8"))
    again = fenchel.up(resume=run.path, in_process=True)
    kept = ledgers(RunFolder(run.path)).values()
    assert {release.noise_multiplier for ledger in kept for release in ledger.releases} == {2.0, 4.0}
    for column, method in {"epsilon_pld": "pld-wor", "epsilon_rdp": "rdp-wor"}.items():
        spent = max(epsilon(ledger.releases, 1e-4, method) for ledger in kept)  # type: ignore[arg-type]
        found = again.metrics_table[column].to_pylist()
        assert found[-1] == pytest.approx(spent, rel=1e-6)
        assert found == sorted(found)
        groups = json.loads((run.path / "disclosures.json").read_text())["noise"]["groups"]
        assert max(group[column] for group in groups) == pytest.approx(spent, rel=1e-6)


@pytest.mark.slow
def test_a_run_ends_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "budget")
    Federation(private(SOUND | {"budget": 0.15}), folder).run()
    rows = pq.read_table(folder.metrics).to_pydict()
    assert 0 < len(rows["round"]) < 12
    assert max(rows["epsilon_pld"]) <= 0.15
    spent = [epsilon(ledger.releases, 1e-4) for ledger in ledgers(folder).values()]
    assert max(spent) <= 0.15
    assert '"completed": true' in folder.summary.read_text()
    assert "above differential_privacy.budget (0.15" in folder.summary.read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"uplink": {"sparsify": {"support": "top-k", "keep": 0.5}}},
        {"algorithm": {"name": "fedpdm", "tolerance": 0.1, **LOCAL}},
        {"algorithm": {"name": "fedpdm", "dual": "private", **LOCAL}},
        {"algorithm": {"name": "fedpdm", **LOCAL, "batches": "independent"}},
        {
            "algorithm": {"name": "fedavg", **LOCAL},
            "objective": {"kind": "softmax", "regularizer": {"kind": "l1", "weight": 0.1}},
        },
        {
            "algorithm": {"name": "fedavg", "regularizer_step": "prox", **LOCAL},
            "objective": {"kind": "softmax", "regularizer": {"kind": "l0", "weight": 0.1}},
        },
        {"objective": {"kind": "hinge"}, "data": TWO_CLASSES},
        {"objective": {"kind": "mlp"}},
        {"algorithm": {"name": "fedpdm", **LOCAL, "local_steps": 80}},
    ],
)
def test_what_makes_the_claim_false_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, key="differential_privacy"):
        Federation(private(SOUND, **changes), RunFolder.create(tmp_path, "refused")).run()


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"clients": True}},
        {"uplink": {"noise": 0.1}},
        {"algorithm": {"name": "feddcd"}},
        {"algorithm": {"name": "scaffold", **LOCAL}},
    ],
)
def test_settings_that_contradict_the_claim_are_refused(changes: dict[str, Any]) -> None:
    with raises(SettingsError, source="settings"):
        private(SOUND, **changes)


@pytest.mark.parametrize(
    ("name", "support"),
    rest_slow(
        [
            ("fedavg", None),
            ("fedprox", "shared-random"),
            ("scaffold", "random"),
            ("feddyn", "public-top-k"),
            ("fedpdm", "random"),
            ("fedpdm", "public-top-k"),
        ],
        2,
    ),
)
def test_every_algorithm_runs_with_noise_and_sparse_messages(name: str, support: str | None, tmp_path: Path) -> None:
    algorithm = {"name": name, **LOCAL} | ({} if name == "fedpdm" else {"weighting": "uniform"})
    links = {} if support is None else {"uplink": {"sparsify": {"support": support, "keep": 0.5}}}
    folder = RunFolder.create(tmp_path, name)
    model = Federation(private(SOUND, algorithm=algorithm, rounds=2, **links), folder).run()
    assert np.isfinite(model).all()
    assert sum(ledger.uploads for ledger in ledgers(folder).values()) == 4


def answered(folder: Path, model: Vector, **privacy: Any) -> Vector:
    """What a client process, started in this folder, sends as its first upload."""
    settings = private(SOUND | {"mechanism": "batch"} | privacy, algorithm={"name": "fedavg", **LOCAL})
    holding = LocalData().of(settings, 0, 4)
    session = Session("client-0", settings, holding, journal_folder=folder)
    encoded = encode({"model": model})
    instruction = pb.Instruction(sequence=1, base=0, phase="train", round=1, kind=pb.ASK, payload=encoded.descriptor)
    answer = session.handle(instruction, Received(outline(encoded.descriptor, 1 << 20), encoded.joined()))
    assert not answer.head.failure, answer.head.failure
    assert answer.body is not None
    sent = outline(pb.Payload.FromString(answer.body.payload), 1 << 40).decode(answer.body.content())["model"]
    assert isinstance(sent, np.ndarray)
    return sent


def test_noise_is_never_used_for_two_different_payloads(tmp_path: Path) -> None:
    model = np.zeros(640)
    once, again = answered(tmp_path, model), answered(tmp_path, model)
    assert np.array_equal(once, again), "a retry repeats itself"
    louder = answered(tmp_path, model, noise_multiplier=4.0)
    # Were it the same noise, twice as loud, this would be the vector without any.
    assert np.abs(2 * once - louder).max() > 0.1
    # The tiny number is lost in rounding unless a sample has that feature; equal noise would tell which.
    elsewhere = model.copy()
    elsewhere[0] = 1e-300
    assert not np.array_equal(once, answered(tmp_path, elsewhere))
    assert Ledger(tmp_path / LEDGER, "client-0").uploads == 3


def test_a_model_whose_scores_overflow_tells_nothing_of_who_has_which_feature(tmp_path: Path) -> None:
    model = np.where(np.arange(640) % 2, 1.7e308, -1.7e308)
    sent = answered(tmp_path, model)
    assert np.isfinite(sent).all(), "a sample whose gradient is not finite counts as zero"
    # At this size rounding alone moves an upload by more than any gradient, and the noise covers that.
    assert np.abs(sent - model).max() > 1e290


def test_a_ledger_that_was_lost_is_missed(tmp_path: Path) -> None:
    answered(tmp_path, np.zeros(640))
    (tmp_path / LEDGER).unlink()
    with raises(CheckpointError, file="privacy.ledger"):
        answered(tmp_path, np.zeros(640))


def test_a_policys_limit_holds_whatever_the_mechanism_claims(tmp_path: Path) -> None:
    settings = private(SOUND | {"mechanism": "paper", "noise_multiplier": 0.5})
    policy = Policy(maximum_epsilon=0.5, delta=1e-4, mechanisms=("paper",))
    with raises(SettingsError):
        Session("client-0", settings, LocalData().of(settings, 0, 4), journal_folder=tmp_path, policy=policy)


@dataclass
class Insisting(Federation):
    """A federation some of whose clients have policies."""

    policies: dict[str, Policy] = field(default_factory=dict)

    def participant(self, name: str, local_data: DataProvider) -> Participant:
        return replace(super().participant(name, local_data), policy=self.policies.get(name))


def asked_rounds(folder: RunFolder, client: str) -> list[int]:
    """In which rounds a client was asked, by the record of the server."""
    calls = pq.read_table(folder.calls).to_pydict()
    return [
        t
        for each, kind, t in zip(calls["client"], calls["kind"], calls["round"], strict=True)
        if each == client and kind == "ask" and t > 0
    ]


def allowing(uploads: int) -> Policy:
    """A policy whose largest epsilon is that of so many uploads."""
    release = Release(2.0, LOCAL["local_steps"] * LOCAL["batch_size"] / 359)  # type: ignore[operator]
    return Policy(maximum_epsilon=1.01 * epsilon({release: uploads}, 1e-4), delta=1e-4)


EVERYBODY = {"participation": {"sampler": {"kind": "all"}}}
FEDAVG = {"algorithm": {"name": "fedavg", **LOCAL, "weighting": "uniform"}}


@pytest.mark.parametrize("kills", rest_slow([0, 2]))
def test_a_client_whose_budget_is_spent_is_asked_once_more_and_then_no_longer(
    kills: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder.create(tmp_path, "spent")
    # The server saves each round here, so that a new one knows what the one before it was told.
    always = {"checkpoint": {"every": 1}}
    federation = Insisting(
        private(SOUND, **EVERYBODY, **FEDAVG, **always, rounds=8),
        folder,
        Faults(random.Random(4), kills=kills, frames=20),
        policies={"client-001": allowing(2)},
    )
    federation.run()
    assert federation.killed == kills
    rounds = asked_rounds(folder, "client-001")
    assert rounds == [1, 2, 3]
    assert asked_rounds(folder, "client-000") == list(range(1, 9))
    spoken = [record.getMessage() for record in caplog.records if "client-001" in record.getMessage()]
    assert sum("has spent its privacy budget" in each for each in spoken) <= 1 + kills
    assert any("1 of 4 clients have spent" in record.getMessage() for record in caplog.records)


@pytest.mark.slow  # make test-all
def test_places_of_clients_whose_budgets_are_spent_go_to_others(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "places")
    policies = {"client-001": allowing(1), "client-002": allowing(1)}
    sampled = {"participation": {"sampler": {"kind": "fixed", "size": 2}}}
    Insisting(private(SOUND, **sampled, **FEDAVG, rounds=30), folder, policies=policies).run()
    for client in policies:
        assert len(asked_rounds(folder, client)) == 2
    calls = pq.read_table(folder.calls).to_pydict()
    assert max(calls["round"]) == 30
    assert asked_rounds(folder, "client-000")[-1] == 30, "two are left, so both take part"


@pytest.mark.slow
def test_a_run_stops_when_no_client_has_a_budget_left(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "none-left")
    policies = {f"client-00{number}": allowing(1 + number) for number in range(4)}
    federation = Insisting(private(SOUND, **EVERYBODY, **FEDAVG), folder, policies=policies)
    with raises(RunStoppedError, round=5, phase="train"):
        federation.run()
    sent = {client: ledger.uploads for client, ledger in ledgers(folder).items()}
    assert sent == {client: 1 + number for number, client in enumerate(sorted(policies))}


@pytest.mark.parametrize(
    ("privacy", "algorithm"),
    [
        ({}, {"step_size": 1e-321}),
        ({"noise_multiplier": None, "budget": 1.0, "uploads": 10**9}, {"step_size": 1e-321}),
        ({"mechanism": "recursive"}, {"step_size": 1e-321, "dual": "private"}),
        ({"mechanism": "clip-update", "clip": 1e-310}, {}),
        ({"clip": 1e-310}, {}),
        ({"mechanism": "paper", "clip": 1e-310}, {}),
        ({"noise_multiplier": 1e-90, "clip": 1e-200}, {}),
        ({"feature_norm": 1e150}, {}),
    ],
)
def test_noise_that_no_numbers_can_hold_is_refused_with_the_settings(
    privacy: dict[str, Any], algorithm: dict[str, Any]
) -> None:
    given = {key: value for key, value in (SOUND | privacy).items() if value is not None}
    settings = private(given, algorithm={"name": "fedpdm", "penalty": 1.0, **LOCAL, **algorithm})
    with raises(SettingsError, key="differential_privacy"):
        check_claim(settings)


def test_noise_that_only_a_clients_samples_make_too_small_is_refused_before_it_takes_part(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "local_epochs": 1, "batch_size": 5, "step_size": 1e-321}
    settings = private(SOUND | {"mechanism": "batch"}, algorithm=algorithm)
    check_claim(settings)
    holding = LocalData().of(settings, 0, 4)
    objective = build_objective(settings.objective, holding.shard)
    with raises(SettingsError, key="differential_privacy"):
        check_uploads(settings, objective, [holding.shard.samples])
    with raises(SettingsError, key="differential_privacy"):
        Session("client-0", settings, holding, journal_folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_noise_cannot_cover_does_not_leave_and_is_not_charged(value: float) -> None:
    settings = private(SOUND | {"mechanism": "batch"}, algorithm={"name": "fedavg", **LOCAL})
    holding = LocalData().of(settings, 0, 4)
    protection = protection_of("client-0", settings, build_objective(settings.objective, holding.shard), None)
    assert protection is not None
    with raises(PrivacyBudgetError, round=1):
        protection.released(np.array([0.0, value]), 1, "model", 0.1, 0.0, b"")
    assert protection.ledger.uploads == 0
