"""Sensitivities: the formulas, and what they bound (docs/specifications/fedpdm.md, section 7, oracles 15 and 24)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.accounting.sensitivity import DualDifference, LocalMap, clip_update, contractive, whole_batch

Array = NDArray[np.float64]
Gradient = Callable[[Array, Array], Array]
"""Of one sample's loss: sample (n,), model (n,), to (n,)."""


def clipped(v: Array, most: float) -> Array:
    norm = float(np.linalg.norm(v))
    return v if norm <= most else np.asarray(v * (most / norm))


def logistic(sample: Array, x: Array) -> Array:
    return np.asarray(-sample / (1 + np.exp(sample @ x)))


def squares(sample: Array, x: Array) -> Array:
    """Of ``(a^T x - 1)^2 / 2``."""
    return sample * (sample @ x - 1)


def weakly_convex(x: Array) -> Array:
    """Gradient of ``sum x^2 / (1 + x^2)``."""
    return 2 * x / (1 + x * x) ** 2


@dataclass(frozen=True)
class Round:
    """An independent witness of a client's round: the specification's LOCAL (section 2.2), word for word."""

    eta: float
    rho: float
    batches: Sequence[Sequence[int]]
    clip: float
    beta: float = 0.0

    def __call__(self, samples: Array, x0: Array, dual: Array, gradient: Gradient) -> tuple[Array, Array]:
        """Return the upload ``y`` and the new dual."""
        x = x0.copy()
        for batch in self.batches:
            data = np.mean([clipped(gradient(samples[j], x), self.clip) for j in batch], axis=0)
            x = x - self.eta * (data + self.beta * weakly_convex(x) - dual + self.rho * (x - x0))
        new = dual + self.rho * (x0 - x)
        return x - new / self.rho, new


@pytest.mark.parametrize(
    ("product", "factor"), [(0.5, lambda q: (1 - 0.5**q) / 0.5), (1.0, lambda _: 1.0), (2.0, float)]
)
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_theorem_1_has_the_values_of_the_specification(
    product: float, factor: Callable[[int], float], steps: int
) -> None:
    eta, clip = 0.05, 3.0
    local = LocalMap(eta, steps, pull=product / eta, gain=2, batch_size=10)
    assert whole_batch(local, clip) == pytest.approx(4 * eta * clip * factor(steps), rel=1e-12)


@pytest.mark.parametrize(
    ("eta0", "values"), [(0.01, (0.1638, 0.0568, 0.0272, 0.0139)), (0.04, (0.3689, 0.1896, 0.1002, 0.0535))]
)
def test_theorem_1_for_the_papers_step_sizes(eta0: float, values: tuple[float, ...]) -> None:
    for t, value in zip((0, 10, 50, 199), values, strict=True):
        local = LocalMap(eta0 / np.sqrt(1 + t), 5, pull=10, gain=2, batch_size=10)
        assert whole_batch(local, 1.0) == pytest.approx(value, abs=5e-5)


def test_the_baselines_have_their_own() -> None:
    eta, steps, clip = 0.1, 4, 2.0
    assert whole_batch(LocalMap(eta, steps), clip) == pytest.approx(2 * eta * steps * clip)
    a = 1 - eta * 3.0
    pulled = whole_batch(LocalMap(eta, steps, pull=3.0), clip)
    assert pulled == pytest.approx(2 * eta * clip * (1 + a + a**2 + a**3))


@pytest.mark.parametrize("a", [0.0, 0.3, 1 - 1e-9, 1.0, 1 + 1e-7, 1.5, -0.4, -1.0, -1.2])
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_powers_are_summed_as_one_by_one(a: float, steps: int) -> None:
    local = LocalMap(0.5, steps, pull=(1 - a) / 0.5)
    one_by_one = math.fsum(local.contraction**j for j in range(steps))
    assert local.travel == pytest.approx(0.5 * one_by_one, rel=1e-12, abs=1e-15)


def test_a_sensitivity_is_there_at_once_for_any_number_of_steps() -> None:
    assert whole_batch(LocalMap(0.01, 10**15, pull=1.0), 3.0) == pytest.approx(6.0)
    assert whole_batch(LocalMap(0.01, 10**15), 3.0) == pytest.approx(6e13)
    assert whole_batch(LocalMap(0.01, 10**15), 3.0, beta=1.0) == math.inf


def test_the_private_dual_recursion_has_the_values_of_the_specification() -> None:
    local, difference = LocalMap(0.2, 3, pull=4.0, gain=2), DualDifference()
    found = []
    for _ in range(5):
        bound, difference = difference.step(local, 2.0, penalty=4.0)
        found.append(bound)
    np.testing.assert_allclose(found, [1.984, 2.960128, 2.96793702, 2.9679995, 2.968], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("steps", "ratios"), [(1, (1.0, 7.3, 26, 66)), (5, (1.0, 3.3, 7.3, 14.3))])
def test_a_private_dual_exceeds_the_papers_sensitivity_and_meets_the_recursion(
    steps: int, ratios: tuple[float, ...]
) -> None:
    """The counter-example of section 3.3, item 1: one sample, gradient +G against -G, decaying steps."""
    clip, rho = 1.0, 10.0
    x0, difference = np.zeros(1), DualDifference()
    duals = [np.zeros(1), np.zeros(1)]
    found = {}
    for t in range(200):
        eta = 0.01 / np.sqrt(1 + t)
        work = Round(eta, rho, [[0]] * steps, clip)
        uploads = []
        for side, sign in enumerate((1.0, -1.0)):
            y, duals[side] = work(np.array([[sign * clip]]), x0, duals[side], lambda sample, x: sample)
            uploads.append(y)
        local = LocalMap(eta, steps, pull=rho, gain=2)
        bound, difference = difference.step(local, clip, penalty=rho)
        distance = abs(float((uploads[0] - uploads[1])[0]))
        assert distance == pytest.approx(bound, rel=1e-9)  # attained
        found[t] = distance / whole_batch(local, clip)
    assert [found[t] for t in (0, 10, 50, 199)] == pytest.approx(list(ratios), rel=0.02)


def test_the_difference_of_the_duals_never_exceeds_twice_the_clip() -> None:
    difference = DualDifference()
    for t in range(300):
        local = LocalMap(0.2 / (1 + t), 5, pull=4.0, gain=2)
        _, difference = difference.step(local, 1.5, penalty=4.0)
        assert difference.value <= 3.0
    assert difference.value == pytest.approx(3.0)


def neighbours(random: np.random.Generator, count: int, n: int, norm: float) -> tuple[Array, Array, int]:
    samples = random.normal(size=(count, n))
    samples *= norm / np.linalg.norm(samples, axis=1, keepdims=True)
    changed, other = samples.copy(), int(random.integers(count))
    fresh = random.normal(size=n) if random.random() < 0.5 else -samples[other]
    changed[other] = fresh * (norm / np.linalg.norm(fresh))
    return samples, changed, other


@given(
    seed=st.integers(0, 2**32 - 1),
    eta=st.floats(0.01, 0.6),
    rho=st.floats(0.1, 10),
    steps=st.integers(1, 6),
    batch=st.integers(1, 4),
    clip=st.floats(0.02, 3),
    beta=st.sampled_from([0.0, 0.05, 0.5]),
    loss=st.sampled_from([(logistic, 0.25, True), (squares, 1.0, True), (squares, 1.0, False)]),
)
def test_the_contractive_bound_holds_for_random_neighbours(
    seed: int,
    eta: float,
    rho: float,
    steps: int,
    batch: int,
    clip: float,
    beta: float,
    loss: tuple[Gradient, float, bool],
) -> None:
    gradient, curvature, convex_scalar = loss
    random = np.random.default_rng(seed)
    count, n, norm = steps * batch, 3, 1.5
    samples, changed, _ = neighbours(random, count, n, norm)
    order = random.permutation(count).reshape(steps, batch).tolist()  # batches: epoch
    x0, dual = random.normal(size=n), random.normal(size=n)
    work = Round(eta, rho, order, clip, beta)
    y, _ = work(samples, x0, dual, gradient)
    other, _ = work(changed, x0, dual, gradient)  # a public dual: the same for both
    local = LocalMap(eta, steps, pull=rho, gain=2, batch_size=batch)
    smoothness = curvature * norm**2 + 2 * beta
    bound = contractive(local, clip, smoothness, convex_scalar=convex_scalar, beta=beta)
    assert np.linalg.norm(y - other) <= bound * (1 + 1e-9)
    assert np.linalg.norm(y - other) <= whole_batch(local, clip, beta=beta) * (1 + 1e-9)


def test_the_contractive_bound_is_far_below_the_papers() -> None:
    local = LocalMap(0.05, 5, pull=10.0, gain=2, batch_size=10)
    assert contractive(local, 1.0, 2.0) == pytest.approx(0.02)
    assert whole_batch(local, 1.0) == pytest.approx(0.3875)


def test_the_contractive_bound_grows_where_a_step_stretches() -> None:
    local = LocalMap(0.1, 4, batch_size=5)
    assert contractive(local, 1.0, 2.0) == pytest.approx(0.2 / 5 * 1.2**3)
    assert contractive(local, 1.0, 2.0, convex_scalar=True) == pytest.approx(0.2 / 5)
    assert contractive(local, 1.0, 2.0, convex_scalar=True, beta=0.1) > 0.2 / 5  # pull < beta / 2
    long = LocalMap(1.1, 4, batch_size=5)
    assert contractive(long, 1.0, 2.0, convex_scalar=True) > 2.2 / 5  # eta > 2 / L


def test_the_contractive_bound_fails_where_a_sample_is_used_again() -> None:
    """Section 7, oracle 15: by 6.5, which is why batches other than epoch are refused."""
    local = LocalMap(0.1, 10, pull=1.0, gain=2, batch_size=1)
    work = Round(0.1, 1.0, [[0]] * 10, 0.1)
    sample, start = np.array([[2.0]]), np.zeros(1)
    y, _ = work(sample, start, start, logistic)
    other, _ = work(-sample, start, start, logistic)
    distance = float(np.linalg.norm(y - other))
    bound = contractive(local, 0.1, 0.25 * 2.0**2, convex_scalar=True)
    assert distance / bound == pytest.approx(6.5, abs=0.05)
    assert distance <= whole_batch(local, 0.1) * (1 + 1e-12)


def test_an_unclipped_regulariser_exceeds_theorem_1_without_its_correction() -> None:
    """Section 3.3, item 5. Around 1 the slope of the regulariser falls, which drives two runs apart."""
    eta, rho, steps, clip, beta = 0.02, 1.0, 100, 0.01, 4.0
    work = Round(eta, rho, [[0]] * steps, clip, beta)
    x0 = np.ones(1)
    dual = beta * weakly_convex(x0)  # without a sample both would stay
    sides = [work(np.array([[sign]]), x0, dual, lambda sample, x: sample)[0] for sign in (1.0, -1.0)]
    distance = float(np.linalg.norm(sides[0] - sides[1]))
    local = LocalMap(eta, steps, pull=rho, gain=2)
    assert distance > 4 * whole_batch(local, clip)
    assert distance <= whole_batch(local, clip, beta=beta)


@given(seed=st.integers(0, 2**32 - 1), bound=st.floats(0.01, 5), steps=st.integers(1, 8))
def test_a_clipped_update_moves_at_most_twice_its_bound(seed: int, bound: float, steps: int) -> None:
    random = np.random.default_rng(seed)
    x0 = random.normal(size=4)
    sent = []
    for _ in range(2):  # any two data sets, and any private states
        work = Round(0.3, 2.0, [random.integers(0, 5, 2).tolist() for _ in range(steps)], 10.0)
        y, _ = work(random.normal(size=(5, 4)) * 9, x0, random.normal(size=4) * 9, squares)
        sent.append(x0 + clipped(y - x0, bound))
    assert np.linalg.norm(sent[0] - sent[1]) <= clip_update(bound) * (1 + 1e-12)


def test_opposite_gradients_nearly_attain_twice_the_bound() -> None:
    x0, bound = np.zeros(2), 0.5
    work = Round(0.3, 1.0, [[0]] * 5, 10.0)
    sent = []
    for sign in (1.0, -1.0):
        y, _ = work(np.array([[sign, 0.1]]), x0, np.zeros(2), lambda sample, x: 9 * sample)
        sent.append(x0 + clipped(y - x0, bound))
    distance = np.linalg.norm(sent[0] - sent[1])
    assert 1.9 * bound < distance <= clip_update(bound)


def test_steps_that_stretch_beyond_all_numbers_have_no_sensitivity() -> None:
    assert contractive(LocalMap(10.0, 500, pull=2.0), 1.0, 5.0) == math.inf
