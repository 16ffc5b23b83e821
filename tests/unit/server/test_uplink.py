"""What the server makes of vectors of which each client sent some coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.compression.sparsification import kept
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.errors import PayloadError
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import ArraySpec, check
from fenchel.common.wire.values import SparseVector, Value
from fenchel.fleet.cohort import Reduced
from fenchel.fleet.uplink import ServerUplink
from tests.messages import raises
from tests.reservations import InRoom, roomy

SEED, D, T = 7, 12, 4
SUPPORTS = ("top-k", "random", "shared-random", "public-top-k")
X0 = np.random.default_rng(1).standard_normal(D)


def settings_of(support: str | None, keep: float = 0.4, **others: Any) -> Uplink:
    fill = {"fill": others.pop("fill")} if "fill" in others else {}
    sparsify = {"support": support, "keep": keep, **fill} if support else None
    return Uplink.model_validate({"sparsify": sparsify, **others})


def sent(settings: Uplink, vectors: Mapping[str, Vector], around: Vector = X0) -> dict[str, dict[str, Value]]:
    """What arrives of each client's vector, after the wire; weights are 1, 2, 3 and so on."""
    arrived = {}
    for weight, (client, vector) in enumerate(sorted(vectors.items()), 1):
        way = ClientUplink(settings, SEED, client)
        wire = way.send(vector, T, around=around).wire
        encoded = encode({"model": wire, "samples": weight})
        arrived[client] = outline(encoded.descriptor, 1 << 40).decode(
            b"".join(bytes(part) for part in encoded.segments)
        )
    return arrived


def folded(replies: Mapping[str, dict[str, Value]], weight: str | None = None) -> Reduced:
    collector = Reduced(sorted(replies), weight, buffer_bytes=1 << 20)
    room = InRoom(collector, roomy(sorted(replies), 1 << 20))
    for client, reply in replies.items():
        room.add(client, reply)
    return collector


def vectors_of(clients: int, seed: int, dtype: str = "float64") -> dict[str, Vector]:
    draw = np.random.default_rng(seed)
    return {f"client-{i:03d}": draw.standard_normal(D).astype(dtype) for i in range(clients)}


def by_hand(settings: Uplink, vectors: Mapping[str, Vector], weighted: bool, around: Vector) -> tuple[Vector, Vector]:
    """Sum and weight of each coordinate, one value after the other."""
    total, coverage = np.zeros(D), np.zeros(D)
    for weight, (client, vector) in enumerate(sorted(vectors.items()), 1):
        one = ClientUplink(settings, SEED, client).send(vector, T, around=around)
        for j, value in zip(np.arange(D)[one.coordinates], one.values, strict=True):
            total[j] += (weight if weighted else 1) * value
            coverage[j] += weight if weighted else 1
    return total, coverage


@given(
    support=st.sampled_from([None, *SUPPORTS]),
    keep=st.floats(0.01, 1),
    clients=st.integers(1, 5),
    weighted=st.booleans(),
    fill=st.sampled_from([None, "zero", "hold"]),
    seed=st.integers(0, 999),
)
def test_sums_and_means_go_over_those_who_sent_a_coordinate(
    support: str | None, keep: float, clients: int, weighted: bool, fill: str | None, seed: int
) -> None:
    settings = settings_of(support, keep, fill=fill)
    vectors = vectors_of(clients, seed)
    server = ServerUplink(settings, SEED)
    replies = folded(sent(settings, vectors), "samples" if weighted else None)
    sums = server.received(replies, "model", X0, T)
    total, coverage = by_hand(settings, vectors, weighted, X0)
    np.testing.assert_allclose(sums.total, total, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(sums.coverage, coverage)
    holds = support is not None and (support != "top-k" if fill is None else fill == "hold")
    assert sums.holds == holds
    uncovered = X0 if holds else np.zeros(D)
    expected = [total[j] / coverage[j] if coverage[j] else uncovered[j] for j in range(D)]
    np.testing.assert_allclose(sums.mean(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("support", [None, *SUPPORTS])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_what_is_expected_is_what_clients_send_and_nothing_else(support: str | None, dtype: str | None) -> None:
    settings = settings_of(support, dtype=dtype)
    expected = {"model": ServerUplink(settings, SEED).expected(X0), "samples": int}
    (good,) = sent(settings, vectors_of(1, 0)).values()
    check(good, expected, client="client-000")
    other = settings_of(support, 0.6, dtype=dtype)  # another share, which is another length
    wrong = [sent(settings_of(support, dtype="float32" if dtype is None else None), vectors_of(1, 0))]
    if support is not None:
        wrong.append(sent(other, vectors_of(1, 0)))
        wrong.append(sent(settings_of(None, dtype=dtype), vectors_of(1, 0)))
    for replies in wrong:
        for reply in replies.values():
            with raises(PayloadError, client="client-000", array="model"):
                check(reply, expected, client="client-000")


def test_a_support_that_the_server_knows_is_expected_without_indices() -> None:
    k = kept(0.4, D)
    for support in SUPPORTS:
        expected = ServerUplink(settings_of(support), SEED).expected(X0)
        assert isinstance(expected, ArraySpec)
        assert expected.shape == ((k,) if support in ("shared-random", "public-top-k") else (D,))
        assert expected.count == (None if support in ("shared-random", "public-top-k") else k)


@pytest.mark.parametrize("support", [None, *SUPPORTS])
def test_the_entries_of_one_client_are_those_that_it_sent(support: str | None) -> None:
    settings = settings_of(support, dtype="float32")
    vectors = vectors_of(1, 3)
    ((client, vector),) = vectors.items()
    reply = sent(settings, vectors)[client]["model"]
    assert isinstance(reply, np.ndarray | SparseVector)
    coordinates, values = ServerUplink(settings, SEED).entries(reply, X0, T)
    own = ClientUplink(settings, SEED, client).send(vector, T, around=X0)
    assert np.arange(D)[coordinates].tolist() == np.arange(D)[own.coordinates].tolist()
    assert values.dtype == np.float64
    assert values.tolist() == own.values.tolist(), "both sides go on with the same numbers"


@pytest.mark.parametrize("support", [None, *SUPPORTS])
@pytest.mark.parametrize("weighted", [False, True])
def test_float32_models_have_float32_sums_and_means(support: str | None, weighted: bool) -> None:
    settings, around = settings_of(support), X0.astype(np.float32)
    replies = folded(sent(settings, vectors_of(3, 0, "float32"), around), "samples" if weighted else None)
    server = ServerUplink(settings, SEED)
    assert server.received(replies, "model", around, T).mean().dtype == np.float32
    assert server.received(replies, "model", around, T).total.dtype == np.float32


def test_a_mean_where_nobody_sent_anything_is_what_is_given() -> None:
    replies = folded(
        {f"client-{i}": {"model": SparseVector(np.array([0, 2]), np.array([2.0, 0.0]), 3)} for i in range(3)}
    )
    around = np.array([7.0, 8.0, 9.0])
    sums = ServerUplink(settings_of("random", 0.6), SEED).received(replies, "model", around, T)
    assert sums.mean(np.array([5.0, 6.0, 7.0])).tolist() == [2, 6, 0]
    assert sums.mean().tolist() == [2, 8, 0]
    assert sums.held(np.array([1.0, 1.0, 1.0])).tolist() == [1, 8, 1]


@pytest.mark.parametrize(("fill", "uncovered"), [("hold", 0.0), ("zero", -8.0)])
def test_of_a_difference_what_was_subtracted_is_taken_off_where_nothing_came(fill: str, uncovered: float) -> None:
    replies = folded({"client-0": {"change": SparseVector(np.array([0, 2]), np.array([2.0, 0.0]), 3)}})
    x = np.array([7.0, 8.0, 9.0])
    sums = ServerUplink(settings_of("random", 0.6, fill=fill), SEED).received(replies, "change", x, T, minus=x)
    assert sums.mean().tolist() == [2, uncovered, 0]


def test_noise_stays_inside_the_support_also_in_the_sum() -> None:
    settings = settings_of("shared-random", 0.4, noise=5.0)
    sums = ServerUplink(settings, SEED).received(folded(sent(settings, vectors_of(4, 0))), "model", X0, T)
    outside = sums.coverage == 0
    assert outside.sum() == D - kept(0.4, D)
    assert not sums.total[outside].any()
