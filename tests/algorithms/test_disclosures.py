"""A run's account of what each party could see, held against its wire."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.fedavg import WeightedSumSettings
from fenchel.client.privacy.protection import Protection
from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.arrays import Vector
from fenchel.common.errors import CheckpointError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.keys.shared import Secrets
from fenchel.testing import Faults, Federation
from tests.algorithms.hybrid import hybrid_settings, shards_of
from tests.algorithms.test_private_runs import SOUND, private
from tests.algorithms.wire import account_of, check_account, crossed, entries, messages, record
from tests.messages import raises


def settings(**changes: Any) -> RunSettings:
    return validate(
        {
            "name": "account",
            "rounds": 4,
            "clients": 3,
            "data": {"name": "digits", "samples": 90},
            "objective": {"kind": "softmax", "l2": 0.01},
            "algorithm": {"name": "fedavg"},
        }
        | changes
    )


def run(chosen: RunSettings, parent: Path, secrets: Secrets | None = None) -> RunFolder:
    folder = RunFolder.create(parent, "account")
    asyncio.run(run_in_process(chosen, folder, secrets=secrets))
    return folder


PLAIN = {
    "fedavg": settings(),
    "sparse uplink": settings(uplink={"sparsify": {"support": "top-k", "keep": 0.1}}),
    "feddcd": settings(algorithm={"name": "feddcd"}),
    "half of them": settings(participation={"sampler": {"kind": "fixed", "size": 1}}, rounds=2),
    "binary": settings(
        data={"name": "breast_cancer", "samples": 90},
        objective={"kind": "logistic", "l2": 0.01},
        evaluation={"histograms": 5},
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_crossed_in_the_clear_is_listed_so_and_nothing_else_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = record(monkeypatch)
    account = account_of(run(PLAIN[name], tmp_path).path)
    assert crossed(messages(frames)), "something was heard"
    check_account(account, messages(frames))
    assert {each["form"] for each in account["messages"]} == {"clear"}
    readers = {each["direction"]: each["readers"] for each in account["messages"]}
    assert readers == {"up": "the server", "down": "the server and the clients it went to"}
    assert account["noise"] is None


@pytest.mark.parametrize("name", ["mb-sgd", "scaffold", "feddyn", "fedpd"])
def test_with_equal_weights_no_client_hears_of_the_others_numbers_of_samples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[str, set[float]] = {}

    def weight(settings: WeightedSumSettings, samples: int, mean_samples: float) -> float:
        heard.setdefault(settings.weighting, set()).add(mean_samples)
        return 1.0

    monkeypatch.setattr(WeightedSumSettings, "weight", weight)
    for weighting in ("samples", "uniform"):
        run(settings(algorithm={"name": name, "weighting": weighting}, rounds=2), tmp_path)
    assert heard["uniform"] == {1.0}
    assert heard["samples"].isdisjoint({1.0})


def test_evaluations_and_heads_are_listed_too(tmp_path: Path) -> None:
    account = account_of(run(PLAIN["binary"], tmp_path).path)
    evaluated = {each["name"] for each in account["messages"] if each["phase"] == "fenchel.evaluate"}
    assert {"model", "loss_sum", "correct", "positives", "negatives"} <= evaluated
    heads = {each["message"]: each for each in account["heads"]}
    assert set(heads) == {"JoinRequest", "JoinReply", "Work", "Hello", "Welcome", "Instruction", "Reply", "Farewell"}
    assert {"client", "instance", "software"} <= set(heads["JoinRequest"]["fields"])
    assert {"shard.samples", "shard.features", "shard.classes"} <= set(heads["Hello"]["fields"])
    assert "timing.compute_ns" in heads["Reply"]["fields"]
    assert not any("payload" in field for head in heads.values() for field in head["fields"])
    assert heads["Farewell"]["times"] == len(account["clients"]) == 3


@pytest.mark.parametrize("protect", [False, True], ids=["contributions in clear", "protected"])
def test_encrypted_hyfdca_shows_nothing_of_single_samples(
    protect: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = record(monkeypatch)
    chosen = hybrid_settings(3, samples=74, preset="linesearch", protect_primal=protect)
    secrets = Secrets.generate(512, for_tests=True)
    folder = run(chosen, tmp_path, secrets)
    account = account_of(folder.path)
    check_account(account, messages(frames))
    ciphertexts = [each for each in account["messages"] if each["form"] == "ciphertext"]
    assert {each["content"] for each in ciphertexts} == {"ciphertexts"}
    assert {each["key"] for each in ciphertexts} == {secrets.private_key.public.id.hex()}
    # Whatever has a side as long as a client has samples, and is no ciphertext:
    numbers = {shard.samples for shard in shards_of(chosen).values()}
    assert not numbers & {shard.features.shape[1] for shard in shards_of(chosen).values()}
    per_sample = {
        (phase, direction, name): listed["form"]
        for (phase, direction, name, content, _), listed in entries(account).items()
        if content != "ciphertexts" and any(lo <= each <= hi for lo, hi in listed["shape"] for each in numbers)
    }
    assert per_sample == {
        ("introduce", "up", "samples"): "pseudonyms",
        ("introduce", "up", "labels"): "pseudonyms",
        # What the server made of these:
        ("align", "down", "order"): "clear",
        ("align", "down", "holders"): "clear",
    }
    contribution = {each["form"] for each in account["messages"] if each["name"] == "contribution"}
    assert contribution == ({"ciphertext"} if protect else {"clear"})


def test_without_encryption_the_same_names_are_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = record(monkeypatch)
    secrets = Secrets.generate(512, for_tests=True)
    encrypted = account_of(run(hybrid_settings(2, preset="exact"), tmp_path / "a", secrets).path)
    frames.clear()
    plain = account_of(run(hybrid_settings(2, preset="exact", privacy="none"), tmp_path / "b").path)
    check_account(plain, messages(frames))
    hidden = {each["name"] for each in encrypted["messages"] if each["form"] == "ciphertext"}
    shown = {each["name"] for each in plain["messages"] if each["form"] == "clear"}
    assert hidden
    assert hidden <= shown


def test_noisy_uploads_are_listed_with_their_noise_and_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = record(monkeypatch)
    left: list[Vector] = []
    released = Protection.released

    def watched(self: Protection, values: Vector, *about: Any, **more: Any) -> Vector:
        noised = released(self, values, *about, **more)
        left.append(values)
        assert not np.array_equal(values, noised)
        return noised

    monkeypatch.setattr(Protection, "released", watched)
    folder = run(private(SOUND, rounds=4), tmp_path)
    account = account_of(folder.path)
    heard = list(messages(frames))
    check_account(account, heard)
    noisy = [each for each in account["messages"] if each["form"] == "noisy"]
    assert [(each["direction"], each["name"], each["times"]) for each in noisy] == [("up", "upload", len(left))]
    wire = b"".join(message.body for message in heard)
    assert not any(values.tobytes() in wire for values in left), "what had no noise yet stayed with its client"
    assert account["noise"]["mechanism"] == "contractive"
    groups = account["noise"]["groups"]
    assert sorted(client for group in groups for client in group["clients"]) == account["clients"]
    for group in groups:
        release = Release(float(str(SOUND["noise_multiplier"])), group["sampling_rate"])
        assert group["noise_multiplier"] == release.noise_multiplier
        assert group["epsilon_pld"] == pytest.approx(epsilon({release: group["uploads"]}, 1e-4, "pld-wor"))
    assert sum(group["uploads"] > 0 for group in groups)


@pytest.mark.parametrize("seed", range(3))
def test_the_account_survives_broken_streams_and_a_killed_server(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = record(monkeypatch)
    folder = RunFolder.create(tmp_path, "account")
    faults = Faults(random.Random(seed), breaks=3, kills=2, frames=12, lag=2)
    federation = Federation(settings(rounds=8), folder, faults)
    federation.run()
    assert federation.broken + federation.killed > 1
    listed, wire = entries(account_of(folder.path)), crossed(messages(frames))
    assert listed.keys() == wire.keys()
    for place, kind in wire.items():
        # What crossed between the last writing and a kill may be missing from the counts; its kind is not.
        assert kind.times / 2 < listed[place]["times"] <= kind.times, place
        assert listed[place]["clients"] == "all"
        assert (listed[place]["first_round"], listed[place]["last_round"]) == (1, 8)


def test_a_damaged_account_is_not_begun_anew_in_silence(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "account")
    faults = Faults(random.Random(0), kills=1, frames=40)
    federation = Federation(settings(rounds=30), folder, faults)
    federation.run()
    folder.disclosures.write_text(json.dumps({"run": folder.id}))
    with raises(CheckpointError, file="disclosures.json"):
        federation.run(resume=True)
