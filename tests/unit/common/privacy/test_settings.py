"""Settings of differential privacy: how the noise is given, and what is refused (oracle 17)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from fenchel.common.accounting import paper
from fenchel.common.accounting.accountant import SMALLEST_RATE, Release, epsilon
from fenchel.common.accounting.public_facts import PrivacyFacts, Support
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap, contractive, whole_batch
from fenchel.common.errors import SettingsError
from fenchel.common.settings.privacy import DifferentialPrivacy, Mechanism
from tests.messages import raises

SOUND = PrivacyFacts(
    support="dense",
    error_feedback=False,
    fixed_steps=True,
    batches="epoch",
    dual="public",
    aggregator="sampled",
    steps=5,
    batch_size=10,
    samples=325,
    fixed_seeds=False,
    beta=0.0,
    convex_scalar=True,
    curvature=0.25,
    penalty=10.0,
    step_size=0.01,
)


def privacy(mechanism: Mechanism = "contractive", **given: Any) -> DifferentialPrivacy:
    basis: dict[str, Any] = {"mechanism": mechanism, "noise_multiplier": 2.0, "feature_norm": 1.0}
    basis |= {"clip": 1.0}
    return DifferentialPrivacy.model_validate({**basis, **given})


@pytest.mark.parametrize("mechanism", ["contractive", "batch", "recursive", "clip-update"])
def test_a_sound_run_is_accepted(mechanism: Mechanism) -> None:
    facts = replace(SOUND, dual="private") if mechanism == "recursive" else SOUND
    assert privacy(mechanism).problems(facts) == []
    assert privacy(mechanism).warnings(facts) == []
    for support in get_args(Support):
        assert bool(privacy(mechanism).problems(replace(facts, support=support))) == (support == "top-k")


EVERY = ("contractive", "batch", "recursive", "clip-update")
REFUSED: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any], str]] = [
    ("top-k", EVERY, {}, {"support": "top-k"}, "set the sparsifier's support to shared-random"),
    ("EF21", EVERY, {}, {"error_feedback": True}, "set error feedback off"),
    ("data-dependent steps", EVERY, {}, {"fixed_steps": False}, "set a fixed number of steps"),
    ("more than there is", EVERY, {}, {"samples": 49}, "set fewer steps or smaller batches"),
    ("fixed seeds", EVERY, {}, {"fixed_seeds": True}, "set fixed_seeds to false"),
    ("hybrid", EVERY, {}, {"aggregator": "hybrid", "dual": "private"}, "the aggregator to sampled"),
    ("batches", ("contractive",), {}, {"batches": "independent"}, "set batches to epoch"),
    ("full batches", ("contractive",), {}, {"batches": "full"}, "set batches to epoch"),
    ("private dual", ("contractive", "batch"), {}, {"dual": "private"}, "mechanism to recursive or clip-update"),
    ("no L", ("contractive",), {"feature_norm": None}, {}, "feature_norm must be given"),
    ("unknown L", ("contractive",), {}, {"curvature": None}, "none is known for this objective"),
    ("regulariser", ("recursive",), {}, {"beta": 0.5}, "set beta to 0"),
    ("a state without penalty", ("recursive",), {}, {"penalty": 0.0, "dual": "private"}, "a private state without one"),
    ("poisson", EVERY, {"accountant": "pld-poisson"}, {}, "set pld-wor or rdp-wor"),
    ("poisson", EVERY, {"accountant": "rdp-poisson"}, {}, "set pld-wor or rdp-wor"),
]


@pytest.mark.parametrize(
    ("mechanism", "given", "facts", "words"),
    [
        pytest.param(mechanism, given, facts, words, id=f"{name}, {mechanism}")
        for name, mechanisms, given, facts, words in REFUSED
        for mechanism in mechanisms
    ],
)
def test_what_would_not_be_private_is_refused(
    mechanism: Mechanism, given: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    basis = replace(SOUND, dual="private") if mechanism == "recursive" else SOUND
    found = privacy(mechanism, **given).problems(replace(basis, **facts))
    assert [problem for problem in found if words in problem], found


def test_a_missing_clip_is_refused() -> None:
    with pytest.raises(ValidationError, match="clip"):
        privacy("batch", clip=None)


def test_the_papers_mechanism_is_warned_of_and_not_refused() -> None:
    odd = replace(
        SOUND, support="top-k", fixed_steps=False, batches="independent", dual="private", beta=0.5, fixed_seeds=True
    )
    paper_like = privacy("paper", fixed_seeds=True)
    assert paper_like.problems(odd) == []
    warnings = " ".join(paper_like.warnings(odd))
    for words in ("claimed by the paper's formula", "top-k", "depends on the data", "private dual", "beta = 0.5"):
        assert words in warnings


def test_a_formula_beyond_its_proof_and_a_large_delta_are_warned_of() -> None:
    by_formula = privacy(noise_multiplier=None, epsilon_per_round=10.0, delta=0.01)
    warnings = " ".join(by_formula.warnings(SOUND))
    assert "proved below 1 only" in warnings
    assert "delta is 0.01" in warnings
    assert by_formula.problems(SOUND) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "nothing sets the noise"),
        ({"budget": 1.0}, "nothing sets the noise"),
        ({"uploads": 10}, "nothing sets the noise"),
        ({"noise_multiplier": 1.0, "epsilon_per_round": 1.0}, "give one of them"),
        ({"epsilon_per_round": 1.0, "budget": 1.0}, "already sets the noise"),
        ({"noise_multiplier": 1.0, "budget": 1.0, "uploads": 10}, "leave uploads out"),
    ],
)
def test_the_noise_is_given_in_one_way(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DifferentialPrivacy.model_validate({"mechanism": "batch", "clip": 1.0, **given})


def test_each_way_gives_its_noise() -> None:
    assert privacy(noise_multiplier=3.0).noise(SOUND) == 3.0
    assert privacy(noise_multiplier=3.0, budget=2.0).noise(SOUND) == 3.0
    by_formula = privacy(noise_multiplier=None, epsilon_per_round=0.5, delta=1e-4)
    assert by_formula.noise(SOUND) == pytest.approx(8.687, abs=1e-3)
    calibrated = privacy(noise_multiplier=None, budget=0.5, uploads=60, delta=1e-4)
    z = calibrated.noise(SOUND)
    assert z == pytest.approx(7.4, abs=0.05)
    assert epsilon({Release(z, 50 / 325): 60}, 1e-4) <= 0.5


def test_a_budget_of_the_papers_mechanism_goes_through_its_theorem() -> None:
    given = {"noise_multiplier": None, "budget": 0.5, "uploads": 60, "delta": 1e-4}
    assert privacy("paper", **given).noise(SOUND) == pytest.approx(2.42, abs=0.005)
    corrected = privacy("paper", **given, total_law="corrected")
    assert corrected.noise(SOUND) == pytest.approx(15.7, abs=0.05)
    assert corrected.claimed(SOUND, 60) == pytest.approx(0.5)
    with raises(SettingsError, key="differential_privacy.budget"):
        privacy("paper", **given).noise(replace(SOUND, samples=50))


def test_the_papers_total_is_shown_beside_any_mechanism() -> None:
    each = paper.epsilon_of(2.0, 1e-5)
    assert privacy().claimed(SOUND, 60) == pytest.approx(paper.total(each, 50 / 325, 60, 1e-5))
    assert privacy().claimed(replace(SOUND, samples=50), 60) == math.inf


def test_drawing_counts_only_where_it_protects() -> None:
    share = 50 / 325
    assert privacy("contractive").sampling_rate(SOUND) == share
    assert privacy("batch").sampling_rate(SOUND) == share
    for batches in ("independent", "full"):
        assert privacy("batch").sampling_rate(replace(SOUND, batches=batches)) == 1
    assert privacy("batch").sampling_rate(replace(SOUND, dual="private")) == 1
    for mechanism in ("recursive", "clip-update"):
        assert privacy(mechanism).sampling_rate(SOUND) == 1
    assert privacy("paper").sampling_rate(replace(SOUND, dual="private")) == share


def test_the_smoothness_follows_from_the_norm_that_everybody_knows() -> None:
    assert privacy(feature_norm=2.0).smoothness(replace(SOUND, beta=0.3)) == pytest.approx(0.25 * 4 + 0.6)
    assert privacy(feature_norm=None).smoothness(SOUND) is None
    assert privacy(feature_norm=1e200).smoothness(SOUND) == math.inf


def test_each_mechanism_has_its_sensitivity() -> None:
    local = LocalMap(0.01, 5, pull=10.0, gain=2, batch_size=10)
    facts, none = replace(SOUND, beta=0.5), DualDifference()
    clip = 1.0
    assert privacy("paper").sensitivity(local, facts, none) == (whole_batch(local, clip), none)
    assert privacy("batch").sensitivity(local, facts, none) == (whole_batch(local, clip, beta=0.5), none)
    assert privacy("clip-update", clip=3.0).sensitivity(local, facts, none) == (6.0, none)
    found, _ = privacy("contractive").sensitivity(local, facts, none)
    assert found == contractive(local, clip, 1.25, convex_scalar=True, beta=0.5)
    bound, after = privacy("recursive").sensitivity(local, SOUND, none)
    assert bound == pytest.approx(whole_batch(local, clip))
    assert privacy("recursive").sensitivity(local, SOUND, after)[0] > bound
    alone = LocalMap(0.01, 5, batch_size=10)  # FedAvg: no dual variable
    assert privacy("recursive").sensitivity(alone, replace(SOUND, penalty=0.0), none)[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "given",
    [
        {"noise_multiplier": 1e200},
        {"noise_multiplier": 1e-200},
        {"noise_multiplier": None, "epsilon_per_round": 1e-320},
    ],
)
def test_noise_that_cannot_be_accounted_for_is_refused(given: dict[str, Any]) -> None:
    with raises(SettingsError, key="differential_privacy"):
        privacy(**given).noise(SOUND)


def test_a_sampling_rate_below_all_that_can_be_accounted_for_is_raised() -> None:
    many = replace(SOUND, steps=1, batch_size=1, samples=10**12)
    assert Release(2.0, privacy().sampling_rate(many)).sampling_rate == SMALLEST_RATE
