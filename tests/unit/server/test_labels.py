"""Labels of one sample at several clients: whether they agree is seen without knowing them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.alignment import Alignment, HeldEntries, align, check_labels
from fenchel.common.arrays import Indices
from fenchel.common.crypto.pseudonyms import LABEL_BYTES, label_pseudonyms, pseudonyms
from fenchel.common.errors import ContradictingLabelsError, DataError
from tests.messages import raises

KEY = bytes(range(32))
ROWS: dict[str, Indices] = {"a": np.array([4, 0, 1, 2]), "b": np.array([0, 1, 2, 3]), "c": np.array([3, 2])}
"""Which samples each client has, in the order of its rows; 4 is with one client only."""


def names(client: str) -> list[str]:
    return [f"patient {sample}" for sample in ROWS[client]]


def alignment() -> Alignment:
    local_data = {
        client: HeldEntries(pseudonyms(KEY, names(client)), np.array([place]))
        for place, client in enumerate(sorted(ROWS))
    }
    return align(local_data, features=3, block=2, ragged=False, random=np.random.default_rng(1))


def labels(**changed: dict[int, float]) -> dict[str, NDArray[np.uint8]]:
    """Pseudonyms of the labels 0, 1, 4, 9, ..., of which clients may have changed some, by sample."""
    return {
        client: label_pseudonyms(
            KEY, names(client), np.array([changed.get(client, {}).get(sample, sample**2.0) for sample in rows.tolist()])
        )
        for client, rows in ROWS.items()
    }


def test_holders_that_agree_pass() -> None:
    check_labels(alignment(), labels())
    check_labels(alignment(), labels(a={4: -1.0}))  # nobody else has it
    check_labels(alignment(), labels(a={0: -0.0}))


@pytest.mark.parametrize(
    ("changed", "contradictions", "clients", "rows"),
    [
        ({"a": {0: 1.0}}, 1, ("a", "b"), (2, 1)),
        ({"b": {0: 1.0, 1: 0.0}}, 2, ("a", "b"), (2, 1)),
        ({"c": {3: np.nextafter(9.0, 10.0)}}, 1, ("b", "c"), (4, 1)),
        ({"b": {2: 5.0}, "c": {2: 6.0}}, 1, ("a", "b"), (4, 3)),
    ],
)
def test_samples_with_two_labels_are_refused_with_their_number(
    changed: dict[str, dict[int, float]], contradictions: int, clients: tuple[str, str], rows: tuple[int, int]
) -> None:
    with raises(ContradictingLabelsError) as caught:
        check_labels(alignment(), labels(**changed))
    assert caught.value.contradictions == contradictions
    assert caught.value.clients == clients
    if contradictions == 1:
        assert caught.value.rows == rows
    assert caught.value.exit_code == DataError.exit_code


def test_labels_of_different_samples_cannot_be_compared() -> None:
    found = label_pseudonyms(KEY, [f"patient {i}" for i in range(200)], np.ones(200))
    assert found.shape == (200, LABEL_BYTES)
    assert len({row.tobytes() for row in found}) == 200
    other = label_pseudonyms(KEY[::-1], [f"patient {i}" for i in range(200)], np.ones(200))
    assert not (found == other).all(axis=1).any(), "and without the key they cannot be tried out"
