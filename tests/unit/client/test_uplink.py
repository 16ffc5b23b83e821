"""What leaves a client of a vector: some coordinates, clipped, with noise, in fewer bits; in this order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.compression.sparsification import kept, top_k, uplink_support
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.randomness import generator
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector

SEED, CLIENT, D = 7, "client-001", 40
SUPPORTS = ("top-k", "random", "shared-random", "public-top-k")
DRAW = np.random.default_rng(0)
X0, VECTOR = DRAW.standard_normal(D), DRAW.standard_normal(D)


def uplink(client: str = CLIENT, seed: int = SEED, **settings: Any) -> ClientUplink:
    return ClientUplink(Uplink.model_validate(settings), seed, client)


def sparsify(support: str, keep: float = 0.25) -> dict[str, Any]:
    return {"support": support, "keep": keep}


def wire_bytes(wire: Vector | SparseVector) -> bytes:
    encoded = encode({"upload": wire})
    return encoded.descriptor.SerializeToString(deterministic=True) + b"".join(
        bytes(segment) for segment in encoded.segments
    )


def test_a_plain_uplink_changes_nothing() -> None:
    sent = uplink().send(VECTOR, 1, around=X0)
    assert isinstance(sent.wire, np.ndarray)
    assert sent.wire.tobytes() == sent.values.tobytes() == VECTOR.tobytes()
    assert VECTOR[sent.coordinates].size == D
    assert not uplink().changes
    assert not uplink().noisy


@pytest.mark.parametrize("support", SUPPORTS)
def test_each_support_sends_what_it_says(support: str) -> None:
    sent = uplink(sparsify=sparsify(support)).send(VECTOR, 3, around=X0)
    coordinates = np.arange(D)[sent.coordinates]
    k = kept(0.25, D)
    assert len(coordinates) == k == 10
    assert sent.values.tolist() == VECTOR[coordinates].tolist()
    if support == "top-k":
        assert coordinates.tolist() == top_k(VECTOR, k).tolist()
    if support in ("shared-random", "public-top-k"):
        # The server knows the coordinates: values travel alone.
        assert isinstance(sent.wire, np.ndarray)
        assert sent.wire.shape == (k,)
        assert sent.wire.nbytes == 8 * k
        assert coordinates.tolist() == uplink_support(uplink_of(support), X0, SEED, 3).tolist()
    else:
        assert isinstance(sent.wire, SparseVector)
        assert sent.wire.indices.tolist() == coordinates.tolist()
        assert sent.wire.size == D
    if support == "public-top-k":
        assert set(top_k(X0, 8)) <= set(coordinates)
    if support == "random":
        assert isinstance(sent.wire, SparseVector)
        assert sent.wire.seed is not None
        assert coordinates.tolist() == seeded_support(sent.wire.seed, D, k).tolist()


def uplink_of(support: str) -> Any:
    return Uplink.model_validate({"sparsify": sparsify(support)}).sparsify


@given(bound=st.floats(1e-3, 20), scale=st.floats(0, 10))
def test_clipping_shortens_the_difference_from_the_model_and_no_more(bound: float, scale: float) -> None:
    vector = X0 + scale * (VECTOR - X0)
    sent = uplink(clip=bound).send(vector, 1, around=X0)
    change, wanted = sent.values - X0, vector - X0
    length = float(np.linalg.norm(wanted))
    assert float(np.linalg.norm(change)) == pytest.approx(min(bound, length), rel=1e-9, abs=1e-12)
    if length <= bound:
        assert sent.values.tobytes() == vector.tobytes()
    else:
        np.testing.assert_allclose(change, wanted * bound / length, rtol=1e-9, atol=1e-12)


def test_coordinates_are_chosen_before_clipping_and_clipped_by_themselves() -> None:
    # Clipped first, the vector would be near x0, whose largest entry is another one.
    around, vector = np.array([5.0, 0.0, 0.0]), np.array([5.0, 30.0, 40.0])
    sent = uplink(clip=1.0, sparsify=sparsify("top-k", 0.34)).send(vector, 1, around=around)
    assert isinstance(sent.wire, SparseVector)
    assert sent.wire.indices.tolist() == [2]
    assert sent.wire.values.tolist() == [1.0], "of the difference that is sent, 40, nothing is left but the bound"


def test_noise_comes_after_clipping_and_on_chosen_coordinates_only() -> None:
    clip, sigma = 0.01, 3.0
    sent = uplink(clip=clip, noise=sigma, sparsify=sparsify("top-k")).send(VECTOR, 5, around=X0)
    chosen = top_k(VECTOR, 10)
    assert np.arange(D)[sent.coordinates].tolist() == chosen.tolist(), "noise does not choose"
    change = VECTOR[chosen] - X0[chosen]
    clipped = X0[chosen] + change * clip / np.linalg.norm(change)
    noise = generator(SEED, CLIENT, 5, "noise", "model").standard_normal(10)
    np.testing.assert_allclose(sent.values, clipped + sigma * noise, rtol=1e-12)
    assert np.linalg.norm(sent.values - X0[chosen]) > 1, "longer than the bound: it is not clipped again"


def test_bits_are_cut_last_and_what_the_client_goes_on_with_is_what_the_server_reads() -> None:
    sent = uplink(noise=0.1, dtype="float32", sparsify=sparsify("random")).send(VECTOR, 5, around=X0)
    assert isinstance(sent.wire, SparseVector)
    assert sent.wire.values.dtype == np.float32
    assert sent.values.dtype == np.float64
    assert sent.values.tolist() == sent.wire.values.astype(np.float64).tolist()
    exact = uplink(noise=0.1, sparsify=sparsify("random")).send(VECTOR, 5, around=X0)
    assert sent.values.tolist() == exact.values.astype(np.float32).tolist()
    assert sent.values.tolist() != exact.values.tolist()


def test_only_the_difference_from_what_the_server_has_travels_noise_included() -> None:
    has = DRAW.standard_normal(D)
    settings: dict[str, Any] = {"noise": 0.1, "clip": 2.0, "sparsify": sparsify("shared-random")}
    whole = uplink(**settings).send(VECTOR, 2, around=X0)
    change = uplink(**settings).send(VECTOR, 2, around=X0, minus=has)
    chosen = np.arange(D)[whole.coordinates]
    np.testing.assert_allclose(change.values + has[chosen], whole.values, rtol=0, atol=1e-14)
    small = uplink(**settings | {"dtype": "float32"}).send(VECTOR, 2, around=X0, minus=has)
    assert small.values.tolist() == (whole.values - has[chosen]).astype(np.float32).tolist(), "rounded at the end"


@pytest.mark.parametrize("support", [None, *SUPPORTS])
def test_a_retry_gives_the_same_bytes_and_another_round_does_not(support: str | None) -> None:
    settings: dict[str, Any] = {"noise": 0.1, "sparsify": sparsify(support) if support else None}
    first, again = (wire_bytes(uplink(**settings).send(VECTOR, 4, around=X0).wire) for _ in range(2))
    assert first == again
    for t, client, seed in ((5, CLIENT, SEED), (4, "client-002", SEED), (4, CLIENT, 8)):
        assert wire_bytes(uplink(client, seed, **settings).send(VECTOR, t, around=X0).wire) != first
    named = uplink(**settings).send(VECTOR, 4, around=X0, name="control")
    assert wire_bytes(named.wire) != first, "two vectors of one round have different noise"


@pytest.mark.parametrize("support", [None, "random"])
def test_noise_has_the_statistics_that_it_is_said_to_have(support: str | None) -> None:
    sigma, draws, keep = 0.3, 3000, 0.25
    settings: dict[str, Any] = {"noise": sigma, "sparsify": sparsify(support, keep) if support else None}
    ways = {client: uplink(client, **settings) for client in ("client-001", "client-002")}
    noise = {client: np.full((draws, D), np.nan) for client in ways}
    for client, way in ways.items():
        for t in range(draws):
            sent = way.send(VECTOR, t, around=X0)
            noise[client][t, sent.coordinates] = sent.values - VECTOR[sent.coordinates]
    for of_client in noise.values():
        drawn = np.isfinite(of_client)
        assert drawn.sum(axis=1).tolist() == [10 if support else D] * draws, "none outside the support"
        counts = drawn.sum(axis=0)
        means, variances = np.nanmean(of_client, axis=0), np.nanmean(of_client**2, axis=0)
        assert (np.abs(means) < 5 * sigma / np.sqrt(counts)).all()
        assert (np.abs(variances / sigma**2 - 1) < 5 * np.sqrt(2 / counts)).all()
    product = (noise["client-001"] * noise["client-002"])[np.isfinite(noise["client-001"] * noise["client-002"])]
    assert abs(product.mean()) < 5 * sigma**2 / np.sqrt(product.size), "two clients are uncorrelated"
    following = noise["client-001"][1:] * noise["client-001"][:-1]
    following = following[np.isfinite(following)]
    assert abs(following.mean()) < 5 * sigma**2 / np.sqrt(following.size), "and so are two rounds"
