"""Pseudonyms agree where identifiers do, and tell nothing without the key."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.crypto.pseudonyms import cell_pseudonyms, pseudonyms
from fenchel.common.errors import DataError
from tests.complexity import LINEAR, growth
from tests.messages import raises

KEY = bytes(range(32))
IDENTIFIERS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, max_size=20)


def test_a_pseudonym_is_the_hmac_of_the_identifier() -> None:
    found = pseudonyms(KEY, ["patient 7", "Müller"])
    assert found.shape == (2, 32)
    assert found.dtype == np.uint8
    for row, name in zip(found, ["patient 7", "Müller"], strict=True):
        assert row.tobytes() == hmac.new(KEY, b"sample\x00" + name.encode(), hashlib.sha256).digest()


def test_a_repeated_identifier_is_refused_by_rows_and_not_told() -> None:
    with raises(DataError) as refusal:
        pseudonyms(KEY, ["anna", "berta", "carla", "berta"])
    assert "berta" not in str(refusal.value)


def test_the_time_is_proportional_to_the_number_of_samples() -> None:
    names = [f"sample-{i}" for i in range(64_000)]
    assert growth(lambda samples: pseudonyms(KEY, names[:samples]), 4_000) < LINEAR


def test_cells_are_known_by_sample_and_global_feature_wherever_they_lie() -> None:
    # Client A has samples p, q and features 3, 8; client B has samples q, r and features 8, 9.
    a = cell_pseudonyms(KEY, ["p", "q"], np.array([3, 8]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    b = cell_pseudonyms(KEY, ["q", "r"], np.array([8, 9]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    assert a.shape == (4, 16)
    common = {bytes(row) for row in a} & {bytes(row) for row in b}
    assert common == {bytes(a[3])} == {bytes(b[0])}  # sample q, feature 8


@given(IDENTIFIERS.filter(len), st.lists(st.integers(0, 2**40), unique=True, min_size=1, max_size=8))
def test_different_cells_have_different_pseudonyms(identifiers: list[str], features: list[int]) -> None:
    rows, columns = np.divmod(np.arange(len(identifiers) * len(features)), len(features))
    found = cell_pseudonyms(KEY, identifiers, np.array(features), rows, columns)
    assert len({bytes(row) for row in found}) == len(rows)
    samples = {bytes(row)[:16] for row in pseudonyms(KEY, identifiers)}
    assert not samples & {bytes(row) for row in found}
