"""A client that was started for encryption, or whose policy wants it, refuses settings that switch it off."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fenchel.algorithms.hyfdca.settings import HyFDCASettings
from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData
from fenchel.client.privacy.policy import Policy
from fenchel.client.session import Session
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import validate
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises

HYFDCA: dict[str, Any] = {
    "rounds": 1,
    "clients": 1,
    "data": {"name": "breast_cancer", "scale": ["standard", "unit-rows"]},
    "objective": {"kind": "logistic", "l2": 0.01},
    "algorithm": {"name": "hyfdca", "encryption": {"key_bits": 512}},
}
UNEVALUATED = HYFDCA | {"evaluation": {"clients": False}}
FEDAVG = HYFDCA | {"algorithm": {"name": "fedavg"}}
PLAIN = HYFDCA | {"algorithm": {"name": "hyfdca", "privacy": "none"}}


@pytest.fixture(scope="module")
def secrets() -> Secrets:
    return Secrets.generate(512, for_tests=True)


def joined(settings: dict[str, Any], **given: Any) -> Session:
    """Return a client's session in a run with such settings."""
    who = Participant(name="north", server="localhost:1", local_data=LocalData(), **given)
    assignment = pb.Assignment(index=0, clients=settings["clients"])
    reply = pb.JoinReply(run="run", settings=json.dumps(settings), assignment=assignment)
    return Connection(who, ThreadPoolExecutor(1))._ready(reply).session


@pytest.mark.parametrize("settings", [PLAIN, FEDAVG], ids=["privacy: none", "another algorithm"])
@pytest.mark.parametrize("given", ["secrets", "peers"])
def test_a_client_started_for_encryption_refuses_plaintext(
    given: str, settings: dict[str, Any], secrets: Secrets
) -> None:
    started = {"secrets": secrets} if given == "secrets" else {"peers": frozenset({"south"})}
    with raises(SettingsError):
        joined(settings, **started)
    assert joined(settings, **started, trust_limits=TrustLimits(plaintext=True)).client == "north"
    assert joined(settings).client == "north", "nothing says that it expects encryption"


@pytest.mark.parametrize(
    ("given", "bits", "refused"), [("--peer", 1024, True), ("--peer", 2048, False), ("--secrets", 512, False)]
)
def test_a_server_cannot_choose_sealed_keys_that_can_be_broken(given: str, bits: int, refused: bool) -> None:
    settings = validate(HYFDCA | {"algorithm": {"name": "hyfdca", "encryption": {"key_bits": bits}}})
    TrustLimits(plaintext=True).check_encryption(settings, given)
    with pytest.raises(SettingsError) if refused else contextlib.nullcontext():
        TrustLimits().check_encryption(settings, given)


def with_key(bits: int = 3072, **changes: Any) -> HyFDCASettings:
    return HyFDCASettings.model_validate({"encryption": {"key_bits": bits}, **changes})


@pytest.mark.parametrize(
    ("policy", "weak", "strong"),
    [
        ({"encryption": "required"}, with_key(privacy="none"), with_key()),
        ({"encryption": "required"}, with_key(1024), with_key(2048)),
        ({"protect_primal": True}, with_key(), with_key(protect_primal=True)),
        ({"least_picks": 20}, with_key(picks=19), with_key(picks=20)),
        ({"least_picks": 20}, with_key(picks=1), with_key()),
        ({"least_picks": 20}, with_key(picks=20, picking="common"), with_key(picking="common")),
    ],
)
def test_a_policy_refuses_what_shows_more_than_it_allows(
    policy: dict[str, Any], weak: HyFDCASettings, strong: HyFDCASettings
) -> None:
    insists = Policy.model_validate(policy)
    with raises(SettingsError):
        insists.check_exposure("north", weak)
    insists.check_exposure("north", strong)
    Policy().check_exposure("north", weak)


def test_a_session_asks_the_policy(secrets: Secrets) -> None:
    with raises(SettingsError):
        joined(UNEVALUATED, secrets=secrets, policy=Policy(encryption="required"))  # 512 bits
    with raises(SettingsError):
        joined(UNEVALUATED | {"algorithm": FEDAVG["algorithm"]}, policy=Policy(encryption="required"))
    shown = UNEVALUATED | {"algorithm": HYFDCA["algorithm"] | {"picks": 1}}
    with raises(SettingsError):
        joined(shown, secrets=secrets, policy=Policy(protect_primal=True))
    hidden = UNEVALUATED | {"algorithm": HYFDCA["algorithm"] | {"protect_primal": True}}
    assert joined(hidden, secrets=secrets, policy=Policy(protect_primal=True)).client == "north"


@pytest.mark.parametrize("policy", [{"encryption": "required"}, {"protect_primal": True}], ids=str)
def test_a_policy_of_encryption_refuses_a_run_whose_clients_tell_exact_losses(policy: dict[str, Any]) -> None:
    encrypted, insists = with_key(protect_primal=True), Policy.model_validate(policy)
    insists.check_exposure("north", encrypted, evaluates=False)
    with raises(SettingsError):
        insists.check_exposure("north", encrypted, evaluates=True)
    Policy(least_picks=20).check_exposure("north", encrypted, evaluates=True)


def test_a_session_refuses_a_run_whose_clients_evaluate_where_the_policy_wants_encryption(secrets: Secrets) -> None:
    policy = Policy(protect_primal=True)
    hidden = HYFDCA | {"algorithm": HYFDCA["algorithm"] | {"protect_primal": True}}
    with raises(SettingsError):
        joined(hidden, secrets=secrets, policy=policy)
    with raises(SettingsError):
        joined(hidden | {"evaluation": {"clients": True}}, secrets=secrets, policy=policy)
    split = {"data": HYFDCA["data"] | {"partition": {"kind": "grid", "sample_groups": 1, "feature_groups": 2}}}
    assert joined(hidden | split | {"clients": 2}, secrets=secrets, policy=policy), "no client can evaluate"


def test_a_policy_of_encryption_wants_no_noise_and_any_other_does() -> None:
    Policy(encryption="required").check_without_privacy("north")
    Policy(protect_primal=True, least_picks=10).check_without_privacy("north")
    alone = Policy(least_picks=10)  # encrypts nothing by itself
    both = Policy(encryption="required", maximum_epsilon=1.0)
    for policy in (Policy(), alone, both, Policy(ledger=Path("ledger"))):
        with raises(SettingsError):
            policy.check_without_privacy("north")


def test_a_ledger_is_found_beside_the_policy_that_names_it(tmp_path: Path) -> None:
    from fenchel.client.privacy.policy import load_policy

    path = tmp_path / "policies" / "north.yaml"
    path.parent.mkdir()
    path.write_text("maximum_epsilon: 1\nledger: ../ledgers/north\n")
    ledger = load_policy(path).ledger
    assert ledger is not None
    assert ledger.resolve() == (tmp_path / "ledgers" / "north").resolve()
