"""What the clients will know of a model is what travels, and the server goes on with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.compression.sparsification import downlink_seed, kept, top_k
from fenchel.common.settings.uplink import Downlink
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.downlink import ServerDownlink
from tests.payload_sizes import payload_bits

SEED, D = 7, 12
MODEL = np.random.default_rng(1).standard_normal(D)


def downlink(support: str | None, keep: float = 0.4, dtype: str | None = None) -> ServerDownlink:
    sparsify = {"support": support, "keep": keep} if support else None
    return ServerDownlink(Downlink.model_validate({"sparsify": sparsify, "dtype": dtype}), SEED)


def arrived(wire: Vector | SparseVector) -> Vector:
    return wire.dense() if isinstance(wire, SparseVector) else wire


@given(
    support=st.sampled_from([None, "top-k", "shared-random"]),
    dtype=st.sampled_from([None, "float32"]),
    keep=st.floats(0.01, 1),
    t=st.integers(1, 50),
    model=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.1, 2.5, 1 + 1e-9]), min_size=1, max_size=20),
)
def test_what_arrives_is_what_the_server_goes_on_with(
    support: str | None, dtype: str | None, keep: float, t: int, model: list[float]
) -> None:
    # Values that are equal, or equal in fewer bits only: the choice must not change on the way.
    way, x = downlink(support, keep, dtype), np.array(model)
    known = way.kept(x, t)
    wire = way.wire(known, t)
    assert known.dtype == x.dtype
    assert arrived(wire).dtype == (dtype or x.dtype)
    assert arrived(wire).astype(x.dtype).tolist() == known.tolist()
    assert way.kept(known, t).tolist() == known.tolist()
    if support:
        assert isinstance(wire, SparseVector)
        assert len(wire.values) == kept(keep, len(x))


def test_a_plain_downlink_changes_nothing() -> None:
    way = downlink(None)
    assert way.kept(MODEL, 1) is MODEL
    wire = way.wire(MODEL, 1)
    assert isinstance(wire, np.ndarray)
    assert wire.tobytes() == MODEL.tobytes()


def test_the_largest_are_kept_and_of_equal_ones_the_first() -> None:
    known = downlink("top-k").kept(MODEL, 1)
    largest = top_k(MODEL, 5)
    assert np.flatnonzero(known).tolist() == largest.tolist()
    assert known[largest].tolist() == MODEL[largest].tolist()
    assert downlink("top-k", 0.5).kept(np.array([1.0, -2.0, 2.0, 2.0]), 1).tolist() == [0, -2, 2, 0]
    assert downlink("top-k", 1e-9).kept(np.array([1.0, -2.0, 2.0]), 1).tolist() == [0, -2, 0]


def test_random_coordinates_are_drawn_each_round_and_travel_as_a_seed() -> None:
    way = downlink("shared-random")
    supports = set()
    for t in range(1, 9):
        wire = way.wire(way.kept(MODEL, t), t)
        assert isinstance(wire, SparseVector)
        assert wire.indices.tolist() == seeded_support(downlink_seed(SEED, t), D, 5).tolist()
        supports.add(tuple(wire.indices))
    assert len(supports) > 6
    long = ServerDownlink(downlink("shared-random").settings, SEED).wire(np.ones(10_000), 1)
    assert payload_bits(long) == 64 * 4000 + 64


def test_fewer_bits_are_rounded_before_the_choice() -> None:
    # The second is larger, but not in float32, where the first of two equal ones wins.
    close = np.array([1.0, 1.0 + 1e-12, 0.5])
    assert downlink("top-k", 0.34).kept(close, 1).tolist() == [0, 1 + 1e-12, 0]
    assert downlink("top-k", 0.34, "float32").kept(close, 1).tolist() == [1, 0, 0]


@pytest.mark.parametrize("support", [None, "top-k", "shared-random"])
def test_the_model_itself_is_left_alone(support: str | None) -> None:
    model: Any = MODEL.copy()
    model.setflags(write=False)
    way = downlink(support, dtype="float32")
    way.wire(way.kept(model, 1), 1)
    assert model.tobytes() == MODEL.tobytes()
