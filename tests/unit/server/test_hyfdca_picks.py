"""How much clients pick in common, how their changes are averaged and damped, and how far a line search goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.algorithms.hyfdca.sampled_blocks import SampledBlocks
from fenchel.algorithms.hyfdca.server import best_step
from fenchel.algorithms.hyfdca.settings import LINE_STEPS, HyFDCASettings
from tests.unit.server.test_alignment import aligned, grid, held_by, hybrids


def settings_of(**given_settings: Any) -> HyFDCASettings:
    return HyFDCASettings.model_validate({"name": "hyfdca", "privacy": "none", **given_settings})


Hybrid = tuple[dict[str, Any], int]


@given(hybrids(), st.integers(1, 5), st.integers(1, 60), st.booleans(), st.integers(1, 9))
def test_nobody_picks_more_than_h_samples_or_a_block_more_in_each_group(
    hybrid: Hybrid, block: int, wanted: int, sparse: bool, t: int
) -> None:
    local_data, features = hybrid
    settings = settings_of(picks=wanted, picking="common", messages="sparse" if sparse else "dense")
    alignment = aligned(local_data, features, block)
    picks = SampledBlocks(settings, 5, alignment, block)
    common: dict[int, set[int]] = {}
    for client, part in alignment.slices.items():
        picked = picks.of(client, t)
        groups = len(np.unique(part.group))
        # Every group is picked from, and rounding may add half a sample (or a part of a block) to each.
        assert 1 <= len(picked.entries) <= wanted + groups * (block if sparse else 1)
        assert (picked.blocks is not None) == sparse
        group_of = np.repeat(part.group, part.sizes)
        for group in np.unique(part.group):
            chosen = picked.entries[group_of[picked.entries] == group]
            places = set(part.positions[chosen].tolist())
            assert places
            assert common.setdefault(int(group), places) == places


def test_quotas_are_in_proportion() -> None:
    alignment = aligned(grid(3, 2, 90, 4), 4, 4)
    picks = SampledBlocks(settings_of(picks=12, picking="common"), 0, alignment, 4)
    assert [picks.quotas(client) for client in alignment.slices] == [[12]] * 6
    blocks = SampledBlocks(settings_of(picks=12, picking="common", messages="sparse"), 0, alignment, 4)
    assert blocks.quotas("client-000") == [3]
    assert SampledBlocks(settings_of(picks=12), 0, alignment, 4).quotas("client-000") == [12]
    assert SampledBlocks(settings_of(), 0, alignment, 4).quotas("client-000") == []


def test_changes_are_divided_by_holders_active_holders_or_pickers() -> None:
    """Sample 0 is held by a alone, sample 1 by a and b, samples 2 and 3 by all."""
    local_data = {
        "a": held_by(np.arange(4), np.array([0])),
        "b": held_by(np.array([1, 2, 3]), np.array([1])),
        "c": held_by(np.array([2, 3]), np.array([2])),
    }
    alignment = aligned(local_data, 3, 1)
    cohort = ["a", "c"]
    found = {}
    for averaging in ("all", "active", "pickers"):
        picks = SampledBlocks(settings_of(picks=2, averaging=averaging), 1, alignment, 1)
        picked = {client: picks.of(client, 1) for client in cohort}
        divisors = picks.divisors(cohort, picked)
        found[averaging] = {
            int(row): int(count) for row, count in zip(alignment.slices["a"].order, divisors["a"], strict=True)
        }
        sigma = sum((1 / divisors[client][picked[client].entries]).sum() for client in cohort)
        assert picks.damping(cohort, picked, divisors, 0.5) == max(1.0, sigma / 4)
    assert found["all"] == {0: 1, 1: 2, 2: 3, 3: 3}
    assert found["active"] == {0: 1, 1: 1, 2: 2, 3: 2}
    by_a = set(alignment.slices["a"].order[picked["a"].entries].tolist())
    assert found["pickers"] == {0: 1, 1: 1, 2: 1 + (2 in by_a), 3: 1 + (3 in by_a)}  # c picks both of its own


numbers = st.floats(-3, 3)


@given(numbers, st.floats(0, 3), numbers, st.floats(0, 3), st.floats(0.01, 1))
def test_the_best_step_on_a_parabola_is_the_best(a: float, c: float, wv: float, vv: float, l2: float) -> None:
    def rise(g: float) -> float:
        return g * a - g**2 * c / 2 - l2 * (g * wv + g**2 * vv / 2)

    g = best_step(wv, vv, np.array([a, c]), l2)
    assert 0 <= g <= 1
    assert all(rise(g) >= rise(other) - 1e-12 for other in np.linspace(0, 1, 41))


@given(st.lists(numbers, min_size=1 + len(LINE_STEPS), max_size=1 + len(LINE_STEPS)), numbers, st.floats(0, 3))
def test_the_best_of_several_steps_is_the_best(values: list[float], wv: float, vv: float) -> None:
    g = best_step(wv, vv, np.array(values), 0.5)
    steps = [0.0, *LINE_STEPS]
    totals = [each - 0.5 * (s * wv + s**2 * vv / 2) for each, s in zip(values, steps, strict=True)]
    assert g in steps
    assert totals[steps.index(g)] == pytest.approx(max(totals), abs=1e-12)
