"""The losses of one score and of several, against finite differences and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from fenchel.common.arrays import Dense
from fenchel.common.objectives.losses import (
    Hinge,
    Logistic,
    MarginLoss,
    OneSidedLogistic,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredHinge,
)

LOSSES: list[MarginLoss] = [Hinge(), SmoothedHinge(1.0), SmoothedHinge(0.3), SquaredHinge(), Logistic(), Squared()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
scores = st.floats(-8, 8)
signs = st.sampled_from([-1.0, 1.0])


def at(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value])


@every_loss
@given(z=st.floats(-1e6, 1e6, width=32), y=signs, dtype=st.sampled_from([np.float32, np.float64]))
def test_no_loss_of_one_score_is_negative(loss: MarginLoss, z: float, y: float, dtype: type) -> None:
    assert loss.value(np.array([z], dtype), np.array([y], dtype))[0] >= 0


@pytest.mark.parametrize("loss", [Softmax(), OneSidedLogistic()])
@given(
    scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=12),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_no_loss_of_several_scores_is_negative(
    loss: Softmax | OneSidedLogistic, scores: list[float], dtype: type
) -> None:
    rows: Dense = np.tile(np.array(scores, dtype), (len(scores), 1))
    assert (loss.value(rows, np.arange(len(scores))) >= 0).all()


@every_loss
@given(share=st.floats(0, 1), y=signs)
def test_a_conjugate_is_the_supremum_over_a_grid(loss: MarginLoss, share: float, y: float) -> None:
    low, high = (max(loss.domain[0], -4.0), min(loss.domain[1], 4.0))
    alpha = y * (low + share * (high - low))
    grid = np.linspace(-40, 40, 80_001)
    brute = np.max(-alpha * grid - loss.value(grid, np.full_like(grid, y)))
    assert loss.conjugate(at(alpha), at(y))[0] == pytest.approx(brute, abs=1e-6)


@every_loss
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_a_conjugate_is_infinite_outside_its_domain(loss: MarginLoss, y: float) -> None:
    for end, outwards in zip(loss.domain, (-1, 1), strict=True):
        if math.isfinite(end):
            assert loss.conjugate(at(y * (end + outwards * 1e-9)), at(y))[0] == math.inf
            assert math.isfinite(loss.conjugate(at(y * end), at(y))[0])


@every_loss
@given(z=scores, y=signs)
def test_fenchel_young_is_tight_at_the_negative_derivative(loss: MarginLoss, z: float, y: float) -> None:
    alpha = -loss.derivative(at(z), at(y))
    gap = loss.value(at(z), at(y)) + loss.conjugate(alpha, at(y)) + alpha * z
    assert gap[0] == pytest.approx(0, abs=1e-9)


def test_the_logistic_loss_is_exact_at_extreme_margins() -> None:
    z, y = np.array([-1e4, 0.0, 1e4]), np.ones(3)
    np.testing.assert_array_equal(Logistic().value(z, y), [1e4, math.log(2), 0.0])
    np.testing.assert_array_equal(Logistic().derivative(z, y), [-1.0, -0.5, 0.0])


@given(st.lists(st.lists(st.floats(-300, 300), min_size=3, max_size=3), min_size=1, max_size=4))
def test_softmax_equals_scipy_for_large_scores(rows: list[list[float]]) -> None:
    z = np.array(rows)
    targets = np.arange(len(rows)) % 3
    wanted = -log_softmax(z, axis=1)[np.arange(len(rows)), targets]
    np.testing.assert_allclose(Softmax().value(z, targets), wanted, rtol=1e-12, atol=1e-12)


def test_the_one_sided_loss_sees_the_true_class_alone() -> None:
    z, targets, loss = np.array([[0.0, 7.0, -2.0], [1e4, 0.0, -1e4]]), np.array([0, 2]), OneSidedLogistic()
    np.testing.assert_allclose(loss.value(z, targets), np.array([math.log(2), 1e4]))
    np.testing.assert_allclose(loss.derivative(z, targets), np.array([[-0.5, 0, 0], [0, 0, -1]]))
    assert loss.correct(z, np.array([1, 0])) == 2
    assert loss.outputs(2) == 2, "two classes have two scores"
    for result in (loss.value, loss.derivative):
        assert result(z.astype(np.float32), targets).dtype == np.float32
