"""A client's own policy: what it refuses, and where its ledger stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fenchel.client.privacy.policy import Policy, load_policy
from fenchel.common.accounting.public_facts import Support
from fenchel.common.errors import SettingsError
from fenchel.common.settings.privacy import DifferentialPrivacy
from tests.messages import raises


def judge(policy: Policy, support: Support = "dense", **given: Any) -> None:
    basis: dict[str, Any] = {"mechanism": "batch", "noise_multiplier": 2.0, "clip": 1.0}
    settings = DifferentialPrivacy.model_validate({**basis, **given})
    policy.check_privacy("north", settings, settings.noise_multiplier or 0.0, support)


def test_a_run_without_privacy_is_refused() -> None:
    with raises(SettingsError):
        Policy().check_without_privacy("north")
    Policy(encryption="required").check_without_privacy("north")


@pytest.mark.parametrize(
    ("policy", "support", "given"),
    [
        ({}, "dense", {"mechanism": "paper"}),
        ({}, "top-k", {}),
        ({"minimum_noise_multiplier": 2.5}, "dense", {}),
        ({"maximum_clip_gradient": 0.5}, "dense", {}),
        ({"maximum_clip_update": 0.5}, "dense", {"mechanism": "clip-update", "clip": 0.6}),
        ({"maximum_epsilon": 3}, "dense", {"budget": 4}),
        ({}, "dense", {"delta": 1e-3}),
    ],
)
def test_less_protection_than_wanted_is_refused(
    policy: dict[str, Any], support: Support, given: dict[str, Any]
) -> None:
    with raises(SettingsError):
        judge(Policy.model_validate(policy), support, **given)


def test_as_much_protection_as_wanted_is_not_refused() -> None:
    limits = Policy(minimum_noise_multiplier=2.0, maximum_clip_gradient=1.0, maximum_clip_update=0.5, maximum_epsilon=4)
    judge(limits, budget=4.0, delta=1e-5)


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("maximum_epsilon: 5\nmechanisms: [clip-update]\nsupports: [dense, random]\n")
    policy = load_policy(path)
    assert policy == Policy(maximum_epsilon=5.0, mechanisms=("clip-update",), supports=("dense", "random"))


@pytest.mark.parametrize(
    "text",
    [
        *("maximum_epsilom: 5", "maximum_epsilon: -1", "mechanisms: [magic]", "mechanisms: []", "- 1", "a: ["),
        "maximum_epsilon: 5\ndelta: 1e-6\nmaximum_epsilon: 50",
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with raises(SettingsError, file="policy.yaml"):
        load_policy(path)


def test_a_policy_that_is_missing_is_refused(tmp_path: Path) -> None:
    with raises(SettingsError, source=tmp_path / "none.yaml", key="--privacy-policy"):
        load_policy(tmp_path / "none.yaml")
