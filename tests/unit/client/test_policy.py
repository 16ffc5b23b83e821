"""A client's own policy: what it refuses, in words, and where its ledger stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fenchel.client.privacy.policy import Policy, load_policy
from fenchel.common.accounting.public_facts import Support
from fenchel.common.errors import SettingsError
from fenchel.common.settings.privacy import DifferentialPrivacy
from tests.messages import raises


def asked(**given: Any) -> DifferentialPrivacy:
    basis: dict[str, Any] = {"mechanism": "batch", "noise_multiplier": 2.0, "clip": 1.0}
    return DifferentialPrivacy.model_validate({**basis, **given})


def refused(policy: Policy, support: Support = "dense", **given: Any) -> str | None:
    settings = asked(**given)
    return policy.refusal(settings, settings.noise_multiplier or 0.0, support)


def test_a_run_without_privacy_is_refused() -> None:
    words = Policy().refusal(None, 0.0, "dense")
    assert words is not None
    assert "without differential privacy" in words


@pytest.mark.parametrize(
    ("policy", "support", "given", "words"),
    [
        ({}, "dense", {"mechanism": "paper"}, "mechanism: paper, and the policy wants contractive or batch"),
        ({}, "top-k", {}, "sends top-k coordinates, and the policy wants dense"),
        ({"minimum_noise_multiplier": 2.5}, "dense", {}, "noise multiplier of 2, and the policy wants 2.5 or more"),
        ({"maximum_clip_gradient": 0.5}, "dense", {}, "clip = 1, and the policy wants 0.5 or less"),
        (
            {"maximum_clip_update": 0.5},
            "dense",
            {"mechanism": "clip-update", "clip": 0.6},
            "clip = 0.6, and the policy wants 0.5 or less",
        ),
        ({"maximum_epsilon": 3}, "dense", {"budget": 4}, "budget of epsilon = 4, and the policy wants 3 or less"),
        ({}, "dense", {"delta": 1e-3}, "delta = 0.001, and the policy wants 1e-05 or less"),
    ],
)
def test_less_protection_than_wanted_is_refused(
    policy: dict[str, Any], support: Support, given: dict[str, Any], words: str
) -> None:
    found = refused(Policy.model_validate(policy), support, **given)
    assert found is not None
    assert words in found


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("maximum_epsilon: 5\nmechanisms: [clip-update]\nsupports: [dense, random]\n")
    policy = load_policy(path)
    assert policy == Policy(maximum_epsilon=5.0, mechanisms=("clip-update",), supports=("dense", "random"))


@pytest.mark.parametrize(
    "text", ["maximum_epsilom: 5", "maximum_epsilon: -1", "mechanisms: [magic]", "mechanisms: []", "- 1", "a: ["]
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with raises(SettingsError, file="policy.yaml"):
        load_policy(path)


def test_a_policy_that_is_missing_is_refused(tmp_path: Path) -> None:
    with raises(SettingsError, key="--privacy-policy", source=tmp_path / "none.yaml"):
        load_policy(tmp_path / "none.yaml")
