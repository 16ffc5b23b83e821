"""A dual variable from rounds under one mechanism is not taken for one of another mechanism in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.session import Session
from fenchel.common.settings.run import RunSettings, validate
from tests.unit.client.tally import handled, holding

PRIVATE: dict[str, dict[str, Any]] = {
    "clip-update": {"algorithm": {"dual": "private"}, "differential_privacy": {"mechanism": "clip-update"}},
    "paper": {"algorithm": {"dual": "private"}, "differential_privacy": {"mechanism": "paper"}},
    "recursive": {"algorithm": {"dual": "private"}, "differential_privacy": {"mechanism": "recursive"}},
}
PUBLIC: dict[str, dict[str, Any]] = {
    "contractive": {"algorithm": {}, "differential_privacy": {"mechanism": "contractive", "feature_norm": 1.0}},
    "batch": {"algorithm": {}, "differential_privacy": {"mechanism": "batch"}},
    "public clip-update": {"algorithm": {}, "differential_privacy": {"mechanism": "clip-update"}},
}
CHOICES = PRIVATE | PUBLIC


def settings_of(choice: str) -> RunSettings:
    local = {"name": "fedpdm", "local_steps": 1, "batch_size": 1, "batches": "epoch", "step_size": 0.5}
    chosen = CHOICES[choice]
    return validate(
        {
            "rounds": 9,
            "clients": 1,
            "data": {"name": "digits"},
            "objective": {"kind": "logistic"},
            "algorithm": local | chosen["algorithm"],
            "differential_privacy": {"clip": 1.0, "noise_multiplier": 2.0} | chosen["differential_privacy"],
        }
    )


def failures(first: str, second: str, folder: Path) -> list[str]:
    """Return the failures of two rounds of one run, the second of them after a change of the settings."""
    found = []
    for base, choice in enumerate((first, second)):
        session = Session("client-0", settings_of(choice), holding(), journal_folder=folder)
        size = holding().shard.total_features
        found.append(handled(session, "solve", base + 1, base, model=np.zeros(size)).head.failure)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [(one, other) for one in PRIVATE for other in ("contractive", "batch")]
    + [("clip-update", "recursive"), ("paper", "recursive")],
)
def test_a_private_dual_variable_is_not_taken_for_a_public_or_a_bounded_one(
    first: str, second: str, tmp_path: Path
) -> None:
    before, after = failures(first, second, tmp_path)
    assert not before
    assert after


@pytest.mark.parametrize(
    ("first", "second"),
    [(each, each) for each in CHOICES]
    + [("recursive", "clip-update"), ("batch", "contractive"), ("public clip-update", "contractive")],
)
def test_mechanisms_that_cover_the_dual_variable_may_follow_each_other(first: str, second: str, tmp_path: Path) -> None:
    assert failures(first, second, tmp_path) == ["", ""]
