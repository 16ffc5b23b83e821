"""Picks are uniform, without replacement, and the same wherever they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fenchel.algorithms.hyfdca.settings import HyFDCASettings, entries_of, picked_units
from fenchel.common.arrays import Indices

NO_GROUPS = np.zeros(12, np.int64)


def settings_of(**given_settings: Any) -> HyFDCASettings:
    return HyFDCASettings.model_validate({"name": "hyfdca", **given_settings})


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_entries_of_blocks_are_those_of_the_blocks(sizes: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=10))
    block_of = np.repeat(np.arange(len(sizes)), sizes)
    expected = [place for block in chosen for place in np.flatnonzero(block_of == block)]
    found = entries_of(np.array(sizes), np.array(chosen, np.int64))
    assert found.tolist() == expected


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 2**32), st.integers(1, 10**6))
def test_independent_picks_are_distinct_and_as_many_as_there_are(held: int, quota: int, seed: int, t: int) -> None:
    settings = settings_of(picks=quota)
    picked = picked_units(settings, seed, "client-1", t, np.zeros(held, np.int64), [quota])
    assert len(picked) == min(held, quota)
    assert (np.diff(picked) > 0).all()
    assert 0 <= picked.min() <= picked.max() < held


def test_without_a_number_of_picks_everything_is_picked() -> None:
    for picking in ("independent", "common"):
        assert picked_units(settings_of(picking=picking), 1, "a", 1, NO_GROUPS, []).tolist() == list(range(12))


@pytest.mark.parametrize("picking", ["independent", "common"])
def test_each_unit_is_picked_equally_often_and_pairs_too(picking: str) -> None:
    """P(i in D) = H / N_k and P(i, j in D) = H (H - 1) / (N_k (N_k - 1)): picks without replacement."""
    settings, rounds, quota = settings_of(picks=5, picking=picking), 6000, 5
    together = np.zeros((12, 12))
    for t in range(1, rounds + 1):
        drawn = np.zeros(12)
        drawn[picked_units(settings, 3, "client-2", t, NO_GROUPS, [quota])] = 1
        together += np.outer(drawn, drawn)
    single, pair = 5 / 12, 5 * 4 / (12 * 11)
    error = 4.5 * np.sqrt(np.array([single * (1 - single), pair * (1 - pair)]) / rounds)
    frequencies = together / rounds
    assert np.abs(np.diag(frequencies) - single).max() < error[0]
    assert np.abs(frequencies[~np.eye(12, dtype=bool)] - pair).max() < error[1]


def picks(client: str, t: int, seed: int = 0, picking: str = "independent") -> list[int]:
    settings = settings_of(picks=4, picking=picking)
    return list(map(int, picked_units(settings, seed, client, t, np.zeros(40, np.int64), [4])))


def test_picks_depend_on_client_round_and_seed_and_on_nothing_else() -> None:
    assert picks("a", 1) == picks("a", 1)
    different = [picks("a", 1), picks("b", 1), picks("a", 2), picks("a", 1, seed=1)]
    assert len({tuple(each) for each in different}) == 4


def test_common_picks_of_a_group_are_the_same_for_all_its_holders() -> None:
    """The clients hold the groups 0 and 2, 2 and 5: of the common one they pick the same."""
    settings = settings_of(picks=6, picking="common")
    one, other = np.repeat([0, 2], [7, 9]), np.repeat([2, 5], [9, 4])
    for t in range(1, 30):
        mine = picked_units(settings, 1, "a", t, one, [2, 4])
        theirs = picked_units(settings, 1, "b", t, other, [4, 3])
        assert counts(mine, one) == {0: 2, 2: 4}
        assert counts(theirs, other) == {2: 4, 5: 3}
        assert (mine[mine >= 7] - 7).tolist() == theirs[theirs < 9].tolist()
    assert picks("a", 1, picking="common") == picks("b", 1, picking="common")


def counts(picked: Indices, groups: Indices) -> dict[int, int]:
    numbers, times = np.unique(groups[picked], return_counts=True)
    return dict(zip(numbers.tolist(), times.tolist(), strict=True))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"messages": "sparse", "block": 4}, "picking: common"),
        ({"protect_primal": True, "privacy": "none"}, "privacy: paillier"),
        ({"trust": "share"}, "preset: theory"),
        ({"step_size": 1.5}, "step_size"),
        ({"picks": 0}, "picks"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings_of(**wrong)


def test_what_people_are_warned_of() -> None:
    assert settings_of().warnings == ()
    assert settings_of().key_bits == 3072
    assert "Nothing is encrypted" in settings_of(privacy="none").warnings[0]
    assert settings_of(privacy="none").key_bits is None
    assert "can be broken" in settings_of(encryption={"key_bits": 1024}).warnings[0]
