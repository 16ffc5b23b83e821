"""Clients as processes keep to one run, to their policies and to encryption, whatever the server does."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fenchel.client.privacy.ledger import LEDGER, POLICY_LEDGER, Ledger
from fenchel.common.accounting.accountant import Release, epsilon
from fenchel.common.errors import AnotherRunError, BudgetSpentError, SettingsError
from fenchel.deploy.certificates.keys import CLIENTS, make_keys
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, wait_until
from tests.cluster.test_refusals import own_data

pytestmark = pytest.mark.cluster

NAMES = ["client-000", "client-001"]
DELTA = 1e-4
SAMPLES = 60
SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "clients": 2,
    "data": {"name": "own", "classes": ["ill", "well"], "scale": "unit-rows"},
    "objective": {"kind": "logistic"},
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 5, "batches": "epoch", "weighting": "uniform"},
    "differential_privacy": {"mechanism": "batch", "clip": 0.5, "noise_multiplier": 2.0, "delta": DELTA},
}
ALLOWED = 6
MOST = 1.01 * epsilon({Release(2.0, 10 / SAMPLES): ALLOWED}, DELTA)


def begin_anew(federation: Federation) -> None:
    """Start a server that knows nothing of the run before."""
    runs = federation.folder / "runs"
    if runs.exists():
        runs.rename(federation.folder / f"runs-{len(list(federation.folder.glob('runs*')))}")
    federation.start_server()


def uploads(state: Path, name: str) -> int:
    """Return what a client has sent, by the ledgers of its runs."""
    return sum(Ledger(path, name).uploads for path in state.rglob(LEDGER))


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(180)
def test_a_policy_counts_all_runs_of_a_server_that_begins_anew(federate: MakeFederation) -> None:
    federation = federate(SETTINGS)
    policy = federation.folder / "policy.yaml"
    policy.write_text(f"maximum_epsilon: {MOST}\ndelta: {DELTA}\n")
    words = {
        name: ["--data", str(own_data(federation.folder, 4, seed)), "--label", "outcome"]
        for seed, name in enumerate(NAMES)
    }
    words[NAMES[0]] += ["--privacy-policy", str(policy)]
    state = federation.folder / "state" / NAMES[0]
    for sent in (4, ALLOWED):
        begin_anew(federation)
        for name in NAMES:
            federation.start_client(name, *words[name])
        federation.finish()  # in the second run without the first client, once its policy is spent
        assert uploads(state, NAMES[0]) == sent
    assert "has spent its privacy budget" in federation.says("server")
    begin_anew(federation)
    for name in NAMES:
        federation.start_client(name, *words[name])
    assert federation.clients[NAMES[0]].wait(60) == BudgetSpentError.exit_code
    assert uploads(state, NAMES[0]) == ALLOWED
    assert len((state / POLICY_LEDGER).read_bytes().splitlines()) == 1 + ALLOWED


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_clients_do_not_follow_a_server_into_another_run(federate: MakeFederation) -> None:
    slow = SETTINGS | {"rounds": 100_000, "data": {"name": "digits"}, "objective": {"kind": "softmax"}}
    del slow["differential_privacy"]
    federation = federate(slow)
    begin_anew(federation)
    federation.start_client(NAMES[0])
    federation.start_client(NAMES[1], "--any-run")
    federation.wait_for_round(2)
    federation.kill("server")
    begin_anew(federation)
    assert federation.clients[NAMES[0]].wait(60) == AnotherRunError.exit_code
    federation.start_client(NAMES[0])  # a new start
    wait_until(lambda: Counter(federation.says("server").split())["listening"] == 2, "the second server")
    said = len(federation.says("server"))
    wait_until(lambda: "round 3 " in federation.says("server")[said:], "the second run")
    assert federation.clients[NAMES[1]].poll() is None


@pytest.mark.slow
def test_a_client_with_secrets_refuses_plaintext_unless_it_may(federate: MakeFederation) -> None:
    plain = SETTINGS | {"data": {"name": "digits"}, "objective": {"kind": "softmax"}}
    del plain["differential_privacy"]
    federation = federate(plain)
    make_keys(federation.folder / "keys", 2048)
    given = ("--secrets", str(federation.folder / "keys" / CLIENTS))
    begin_anew(federation)
    for name in NAMES:
        federation.start_client(name, *given)
    for name in NAMES:
        assert federation.clients[name].wait(60) == SettingsError.exit_code
    shutil.rmtree(federation.folder / "state", ignore_errors=True)
    for name in NAMES:
        federation.start_client(name, *given, "--allow-plaintext")
    federation.finish()
