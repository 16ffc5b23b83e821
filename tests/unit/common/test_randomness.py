"""Streams of random numbers are fixed for good: a run that is resumed years later draws the same."""

from __future__ import annotations

import numpy as np
import pytest

from fenchel.common.randomness import generator


@pytest.mark.parametrize(
    ("seed", "key", "first"),
    [
        (0, (), 8707668668954343680),
        (7, ("server", 1, "cohort"), 8815181544076437712),
        (7, ("client-3", 12, "batches"), 3187730444447251379),
    ],
)
def test_the_first_numbers_of_a_stream_never_change(seed: int, key: tuple[str | int, ...], first: int) -> None:
    assert int(generator(seed, *key).integers(0, 2**63)) == first


def test_a_stream_is_philox_whose_numbers_do_not_depend_on_the_machine() -> None:
    draw = generator(7, "client-3", 12, "batches")
    assert isinstance(draw.bit_generator, np.random.Philox)
    np.testing.assert_array_equal(draw.permutation(10), [2, 0, 4, 1, 5, 8, 3, 9, 6, 7])


def test_streams_of_different_keys_differ() -> None:
    keys: list[tuple[int, tuple[str | int, ...]]] = [
        (1, ()),
        (2, ()),
        (1, ("a",)),
        (1, ("b",)),
        (1, ("a", "b")),
        (1, ("b", "a")),
        (1, ("ab",)),
        (1, ("a", 1)),
        (1, ("a", "1")),
        (1, ("a", 11)),
        (1, ("a", 1, 1)),
        (11, ("a", 1)),
        (1, (1, "a")),
    ]
    drawn = {int(generator(seed, *key).integers(0, 2**63)) for seed, key in keys}
    assert len(drawn) == len(keys)


def test_streams_of_neighbouring_keys_are_not_correlated() -> None:
    table = np.array([generator(1, "client-1", t, "noise").standard_normal(2000) for t in range(20)])
    between = np.corrcoef(table) - np.eye(20)
    # 190 correlations of standard deviation 1/sqrt(2000): five of them are never reached by chance.
    assert np.abs(between).max() < 5 / np.sqrt(2000)
