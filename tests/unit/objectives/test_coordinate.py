"""The step along a dual coordinate: against brute force, and what must hold for every input."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.objectives.coordinate import dual_step, dual_values, feasible, line_terms, scalar_step, theory_step
from fenchel.common.objectives.losses import Hinge, Logistic, MarginLoss, SmoothedHinge, Squared, SquaredHinge

LOSSES: list[MarginLoss] = [Hinge(), SmoothedHinge(1.0), SmoothedHinge(0.3), SquaredHinge(), Logistic(), Squared()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
shares = st.floats(0, 1)
scores = st.floats(-6, 6)
signs = st.sampled_from([-1.0, 1.0])
curvatures = st.floats(1e-3, 1e3)


def at(*values: float) -> Vector:
    return np.array(values)


def one(values: Vector) -> float:
    (value,) = values
    return float(value)


def dual_of(loss: MarginLoss, share: float, y: float) -> float:
    """A dual variable in the domain."""
    low, high = max(loss.domain[0], -4.0), min(loss.domain[1], 4.0)
    return y * (low + share * (high - low))


def gain(loss: MarginLoss, alpha: float, z: float, y: float, q: float, delta: Vector) -> Vector:
    """What a step maximises, at many steps."""
    result: Vector = -loss.conjugate(alpha + delta, np.full_like(delta, y)) - delta * z - q / 2 * delta**2
    return result


def grid_maximum(low: float, high: float, function: Callable[[Vector], Vector]) -> float:
    """The place of the largest value of a concave function, by a grid that closes in."""
    for _ in range(12):
        grid = np.linspace(low, high, 1001)
        with np.errstate(invalid="ignore"):
            values = function(grid)
        best = int(np.argmax(values))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 1000)]
    return (low + high) / 2


@every_loss
@given(share=shares, z=scores, y=signs, q=curvatures)
def test_a_step_is_the_maximum_by_brute_force(loss: MarginLoss, share: float, z: float, y: float, q: float) -> None:
    alpha = dual_of(loss, share, y)
    step = one(dual_step(loss, at(alpha), at(z), at(y), q))
    ends = [y * min(max(end, -60.0), 60.0) - alpha for end in loss.domain]
    brute = grid_maximum(min(ends), max(ends), lambda delta: gain(loss, alpha, z, y, q, delta))
    values = gain(loss, alpha, z, y, q, at(step, brute))
    assert values[0] >= values[1] - 1e-12
    assert step == pytest.approx(brute, abs=1e-6 if q > 0.1 else 1e-4)  # a flat top hides its place


@every_loss
@given(share=shares, z=st.floats(-1e5, 1e5), y=signs, q=st.floats(0, 1e9))
def test_a_step_ends_in_the_domain_exactly(loss: MarginLoss, share: float, z: float, y: float, q: float) -> None:
    alpha = dual_of(loss, share, y)
    moved = at(alpha) + dual_step(loss, at(alpha), at(z), at(y), q)
    assert np.isfinite(loss.conjugate(moved, at(y)))
    theory = theory_step(loss, at(alpha), at(z), at(y), gamma=0.5, trust=1.0, l2=0.01)
    assert np.isfinite(loss.conjugate(at(alpha) + theory, at(y)))


@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_every_dual_variable_is_optimal_at_the_corner_of_the_hinge(y: float) -> None:
    b = np.linspace(0, 1, 11)
    for q in (0.0, 0.5):
        np.testing.assert_array_equal(dual_step(Hinge(), y * b, np.full(11, y), np.full(11, y), q), 0)


@given(share=shares, z=scores, y=signs, q=curvatures, s=st.floats(0.1, 3))
def test_closed_forms_are_those_of_the_specification(share: float, z: float, y: float, q: float, s: float) -> None:
    m = y * z
    expected: dict[MarginLoss, Callable[[float], float]] = {
        Hinge(): lambda b: np.clip(b + (1 - m) / q, 0, 1),
        SmoothedHinge(s): lambda b: np.clip(b + (1 - m - s * b) / (s + q), 0, 1),
        SquaredHinge(): lambda b: max(0, b + (1 - m - b) / (1 + q)),
        Squared(): lambda b: b + y * (y - z - y * b) / (1 + q),
    }
    for loss, best in expected.items():
        alpha = dual_of(loss, share, y)
        step = one(dual_step(loss, at(alpha), at(z), at(y), q))
        assert step == pytest.approx(y * best(y * alpha) - alpha, rel=1e-12, abs=1e-12)


def test_the_squared_loss_steps_to_real_targets() -> None:
    step = dual_step(Squared(), at(0.5, -2.0), at(1.0, 3.0), at(2.5, -7.25), at(1.0, 3.0))
    np.testing.assert_allclose(step, [(2.5 - 1 - 0.5) / 2, (-7.25 - 3 + 2) / 4])


def test_an_empty_row_takes_the_hinge_to_the_end_and_the_others_to_their_slope() -> None:
    y, zero = at(1.0, -1.0), np.zeros(2)
    np.testing.assert_array_equal(dual_step(Hinge(), zero, zero, y, zero), y)
    for loss in LOSSES[1:]:
        np.testing.assert_allclose(dual_step(loss, 0.3 * y, zero, y, 0), -loss.derivative(zero, y) - 0.3 * y)


def exact_logistic(b: float, m: float, q: float) -> Decimal:
    """The root of the specification's equation by bisection with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        context.Emin, context.Emax = -(10**9), 10**9
        wanted, start, weight = Decimal(m), Decimal(b), Decimal(q)
        # In t = ln(p/(1-p)), where t + m + q (p - b) rises from below 0 to above it.
        low, high = -wanted - weight * (1 - start) - 1, -wanted + weight * start + 1
        for _ in range(140):
            t = (low + high) / 2
            p = 1 / (1 + (-t).exp())
            low, high = (t, high) if t + wanted + weight * (p - start) < 0 else (low, t)
        return 1 / (1 + (-low).exp())


@pytest.mark.parametrize("q", [0.0, 1e-6, 0.3, 40.0, 1e4, 1e9])
def test_the_logistic_step_has_all_digits(q: float) -> None:
    for m in (-1e5, -800.0, -3.0, 0.0, 1e-9, 2.0, 35.0, 700.0, 1e5):
        for b in (0.0, 1e-12, 0.25, 0.5, 1 - 1e-9, 1.0):
            step = one(dual_step(Logistic(), at(b), at(m), at(1.0), q))
            assert step == pytest.approx(float(exact_logistic(b, m, q) - Decimal(b)), rel=0, abs=3e-16)


@every_loss
@given(share=shares, z=st.floats(-1e3, 1e3), y=signs, q=st.floats(0, 1e6))
def test_the_step_of_one_sample_equals_that_of_many(
    loss: MarginLoss, share: float, z: float, y: float, q: float
) -> None:
    alpha = dual_of(loss, share, y)
    vector = one(dual_step(loss, at(alpha), at(z), at(y), q))
    assert scalar_step(loss)(alpha, z, y, q) == pytest.approx(vector, rel=1e-15, abs=5e-16)


@every_loss
@given(share=shares, z=scores, y=signs, gamma=st.floats(0.05, 1), trust=st.floats(0.05, 1))
@pytest.mark.parametrize("l2", [0.02, 1.0])
def test_a_theory_step_is_the_best_on_its_segment_by_brute_force(
    loss: MarginLoss, share: float, z: float, y: float, gamma: float, trust: float, l2: float
) -> None:
    alpha = dual_of(loss, share, y)
    u = one(-loss.derivative(at(z), at(y)))

    def objective(s: Vector) -> Vector:
        """Algorithm 3 as it is printed, at many s."""
        moved = s * trust * (u - alpha)
        result: Vector = (
            -loss.conjugate(alpha + gamma * moved, np.full_like(s, y))
            - gamma * z * moved
            - gamma**2 / (2 * l2) * moved**2
        )
        return result

    best = grid_maximum(0.0, 1.0, objective) * trust * (u - alpha)
    step = one(theory_step(loss, at(alpha), at(z), at(y), gamma, trust, l2))
    assert step == pytest.approx(best, abs=1e-5)


@every_loss
def test_feasible_puts_back_what_rounding_pushed_out_and_nothing_else(loss: MarginLoss) -> None:
    y = at(1.0, 1.0, 1.0, -1.0, -1.0, -1.0)
    outside = y * at(-1e-9, 0.5, 1 + 1e-9, -1e-9, 0.5, 1 + 1e-9)
    back = feasible(loss, outside, y)
    assert np.isfinite(loss.conjugate(back, y)).all()
    np.testing.assert_allclose(back, outside, atol=1.1e-9)
    inside = np.isfinite(loss.conjugate(outside, y))
    np.testing.assert_array_equal(back[inside], outside[inside])


@every_loss
@given(start=shares, end=shares, y=signs, g=shares)
def test_the_terms_of_a_line_are_the_conjugates_along_it(
    loss: MarginLoss, start: float, end: float, y: float, g: float
) -> None:
    alpha, change = dual_of(loss, start, y), dual_of(loss, end, y) - dual_of(loss, start, y)
    direct = -loss.conjugate(feasible(loss, at(alpha + g * change), at(y)), at(y))
    assert dual_values(loss, at(alpha), at(change), at(y), at(g)) == pytest.approx(direct, abs=1e-13)
    terms = line_terms(loss, at(alpha), at(change), at(y))
    if isinstance(loss, Logistic):
        assert terms is None
        return
    assert terms is not None
    linear, quadratic = terms
    along = -loss.conjugate(at(alpha), at(y)) + g * linear - g**2 * quadratic / 2
    np.testing.assert_allclose(along, direct, atol=1e-12)
