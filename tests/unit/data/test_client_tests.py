"""Each client's test set has the classes that the client trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.data.client_tests import own_distribution
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.data import DataSettings
from tests.conftest import MakeSettings
from tests.messages import raises

OWN: dict[str, Any] = {"name": "digits", "client_tests": "own-distribution"}


def source(**keys: Any) -> DataSource:
    return DataSource.open(DataSettings.model_validate(OWN | keys), 3)


@pytest.mark.parametrize(("exponent", "alpha"), [(0, 0.5), (0.7, 0.1), (0.3, None)])
def test_sizes_and_classes_follow_those_that_the_client_trains_on(exponent: float, alpha: float | None) -> None:
    data = source(partition={"kind": "zipf", "exponent": exponent, "alpha": alpha})
    test = data.test()
    assert test is not None
    dealt: list[int] = []
    for client in range(10):
        shard, mine = data.shard(client, 10), data.holdout(client, 10)
        assert mine is not None
        dealt += mine.samples_held.tolist()
        np.testing.assert_array_equal(mine.features, np.asarray(test.features)[mine.samples_held])
        np.testing.assert_array_equal(mine.labels, test.labels[mine.samples_held])
        # Exactly in proportion, if shares of whole samples did not use up a class for the last clients.
        assert -3 < mine.samples - 360 * shard.samples / 1437 < 1
        own, held = (np.bincount(each.labels, minlength=10) for each in (mine, shard))
        assert not own[held == 0].any()
        assert np.abs(own - mine.samples * held / shard.samples).max() < 3
    assert len(dealt) == len(set(dealt)) > 350


@given(
    held=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), min_size=1, max_size=6),
    counts=st.lists(st.integers(0, 12), min_size=5, max_size=5),
)
def test_no_sample_is_dealt_twice_and_no_client_tests_on_a_class_that_it_lacks(
    held: list[list[int]], counts: list[int]
) -> None:
    labels = np.repeat(np.arange(5), counts)
    shards = [np.array(each) for each in held]
    try:
        tests = own_distribution(shards, labels, 0)
    except DataError:
        reject()  # a client gets none
    dealt = np.concatenate(tests)
    assert len(np.unique(dealt)) == len(dealt)
    for mine, rows in zip(shards, tests, strict=True):
        assert rows.size
        assert set(labels[rows]) <= set(mine)


def taken(held: list[list[int]], counts: list[int]) -> list[list[int]]:
    """Return how many samples of each class each client gets."""
    labels: NDArray[np.int64] = np.repeat(np.arange(len(counts)), counts)
    tests = own_distribution([np.array(each) for each in held], labels, 0)
    return [np.bincount(labels[rows], minlength=len(counts)).tolist() for rows in tests]


def test_classes_that_are_left_make_good_for_one_that_is_used_up() -> None:
    # Ten test samples for each client: the first leaves one of class 0, so the second takes 6 + 3 more of classes
    # 1 and 2, which it holds in the proportion 2 to 1.
    first, second = [0] * 9 + [1], [0] * 4 + [1] * 4 + [2] * 2
    assert taken([first, second], [10, 7, 3]) == [[9, 1, 0], [1, 6, 3]]


def test_a_client_whose_classes_are_used_up_has_a_smaller_test_set() -> None:
    assert taken([[0] * 5, [0] * 5, [1] * 5], [7, 8]) == [[5, 0], [2, 0], [0, 5]]


def test_a_client_without_any_test_sample_is_named() -> None:
    with raises(DataError, key="data.client_tests", client="1"):
        own_distribution([np.zeros(4), np.zeros(4)], np.array([0, 1, 1]), 0)
    with raises(DataError, key="data.client_tests", client=""):
        own_distribution([np.zeros(4), np.zeros(4)], np.zeros(1), 0)
    with raises(DataError, key="data.client_tests"):
        source(test_fraction=0).holdout(0, 2)


def test_the_server_does_not_evaluate_alone_where_clients_have_tests(make_settings: MakeSettings) -> None:
    with raises(SettingsError, source="settings"):
        make_settings(data=OWN, evaluation={"training": True})
