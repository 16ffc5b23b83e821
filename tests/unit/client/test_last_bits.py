"""The last bits of an upload tell nothing of its data; with floating-point noise they tell all (Mironov, CCS 2012)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fenchel.client.privacy.ledger import Ledger
from fenchel.client.privacy.protection import Protection
from fenchel.client.privacy.randomness import PrivateRandomness
from fenchel.common.accounting.accountant import Release
from fenchel.common.accounting.gaussian import exact_gaussian
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.values import SparseVector

Array = NDArray[np.float64]

COUNT, SENSITIVITY, MULTIPLIER = 64, 0.1, 4.0
FACTS = PrivacyFacts(
    support="dense",
    error_feedback=False,
    fixed_steps=True,
    batches="epoch",
    dual="none",
    aggregator="sampled",
    steps=1,
    batch_size=1,
    samples=100,
    fixed_seeds=False,
    beta=0.0,
    convex_scalar=True,
    curvature=0.25,
    penalty=0.0,
    step_size=0.1,
)
MECHANISM = DifferentialPrivacy(mechanism="clip-update", clip=0.05, noise_multiplier=MULTIPLIER)
ONE = np.random.default_rng(0).normal(size=COUNT)
OTHER = ONE + SENSITIVITY / np.sqrt(COUNT)  # as far away as one sample can move it
SPACING = 2.0**-18
"""The largest power of two up to ``SENSITIVITY 2^-11 / sqrt(COUNT)``."""
_AROUND = np.arange(-8, 9)


def secret(trial: int) -> bytes:
    return hashlib.sha256(f"secret {trial}".encode()).digest()


def protection(trial: int) -> Protection:
    return Protection(MECHANISM, FACTS, Release(MULTIPLIER), PrivateRandomness(secret(trial)), Ledger(None, "client"))


def upload(values: Array, trial: int) -> Array:
    """What a client sends."""
    return np.asarray(protection(trial).released(values, 1, "model", SENSITIVITY, 0.0, b""), np.float64)


def floating_point_upload(values: Array, trial: int) -> Array:
    """The same values with normal numbers as noise, from 53 random bits each."""
    random = np.random.default_rng(np.frombuffer(secret(trial), np.uint32))
    noise = normal(random.integers(1 << 53, size=values.size))
    return np.asarray(values + MULTIPLIER * SENSITIVITY * noise)


def normal(draws: NDArray[np.int64]) -> Array:
    return np.asarray(ndtri((draws + 0.5) * 2.0**-53))


def reachable(sent: Array, values: Array) -> int:
    """How many of the numbers are some value and some floating-point noise, added and rounded."""
    deviation = MULTIPLIER * SENSITIVITY
    nearest = np.floor(ndtr((sent - values) / deviation) * 2.0**53).astype(np.int64)
    draws = np.clip(nearest[:, None] + _AROUND, 0, (1 << 53) - 1)
    return int((values[:, None] + deviation * normal(draws) == sent[:, None]).any(axis=1).sum())


def told_apart(noisy: Callable[[Array, int], Array], trials: int) -> int:
    """In how many trials whoever knows both data sets says which of them was sent."""
    right = 0
    for trial in range(trials):
        truth = trial % 2
        sent = noisy((ONE, OTHER)[truth], trial)
        right += (reachable(sent, OTHER) > reachable(sent, ONE)) == bool(truth)
    return right


def test_the_last_bits_of_floating_point_noise_tell_which_of_two_neighbours_was_sent() -> None:
    assert exact_gaussian(MULTIPLIER, 1e-5) < 1
    assert told_apart(floating_point_upload, 20) == 20


def test_the_last_bits_of_an_upload_tell_nothing() -> None:
    trials = 200
    assert abs(told_apart(upload, trials) - trials / 2) < 3 * np.sqrt(trials) / 2


@pytest.mark.parametrize("support", [None, "random", "shared-random", "public-top-k"])
@pytest.mark.parametrize("model", [np.float64, np.float32])
@pytest.mark.parametrize("wire", ["float64", "float32"])
def test_so_do_sparse_and_short_ones(support: str | None, model: type[np.floating[Any]], wire: str) -> None:
    sparsify = None if support is None else {"support": support, "keep": 0.5}
    links = Uplink.model_validate({"sparsify": sparsify, "dtype": wire})
    way = ClientUplink(links, 3, "client", protection(1))
    values = ONE.astype(model)
    sent = way.send(values, 1, around=values, sensitivity=SENSITIVITY).wire
    left = sent.values if isinstance(sent, SparseVector) else sent
    assert isinstance(left, np.ndarray)
    assert left.dtype == wire
    assert left.size == (COUNT if support is None else COUNT // 2)
    spacings = left.astype(np.float64) / SPACING
    assert np.array_equal(spacings, np.rint(spacings))
    assert not np.array_equal(np.rint(left * 2.0**10), left * 2.0**10), "and on no coarse one"


@pytest.mark.parametrize("model", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [5e-25, 0.05, 40.0])
def test_a_clipped_update_lies_within_its_bound_and_the_rounding_that_is_counted(
    model: type[np.floating[Any]], bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The squares of the smallest ones are 0 in float32.
    within = replace(protection(1), privacy=MECHANISM.model_copy(update={"clip": bound}))
    clipped: list[Array] = []

    def keep(_: Protection, values: Array, *rest: object) -> Array:
        clipped.append(values)
        return values

    monkeypatch.setattr(Protection, "released", keep)
    draw, zero = np.random.default_rng(1), np.zeros(COUNT, model)
    for factor in np.linspace(0.5, 4, 60):
        direction = draw.normal(size=COUNT)
        update = (factor * bound / np.linalg.norm(direction) * direction).astype(model)
        ClientUplink(Uplink(), 3, "client", within).send(update, 1, around=zero, sensitivity=2 * bound)
    for values in clipped:
        assert values.dtype == model
        farthest = 2 * float(np.linalg.norm(values.astype(np.float64)))
        assert farthest <= 2 * bound + within.rounding(values, 0.0)
    assert within.rounding(zero, 0.0) < 1e-5 * bound, "and hardly any noise is added for it"
