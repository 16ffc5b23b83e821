"""The lazily scaled steps are the plain ones, for any data, and cost only what a sample has."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import Hinge, Logistic, MarginLoss, SmoothedHinge, Squared, SquaredHinge
from fenchel.common.optim.sparse_descent import descend
from tests.algorithms.local_descent import step

SAMPLES, FEATURES = 12, 7
LOSSES = [Hinge(), SmoothedHinge(0.5), SquaredHinge(), Logistic(), Squared()]


def objective_on(
    loss: MarginLoss, l2: float, *, sparse: bool, seed: int = 0, dtype: str = "float64"
) -> LinearObjective:
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((SAMPLES, FEATURES)) * (chance.random((SAMPLES, FEATURES)) < 0.5)
    x[0] = 0  # a sample may have no value here: others hold its features
    labels = chance.integers(0, 2, SAMPLES)
    shard = Shard(sp.csr_array(x) if sparse else x, labels, 2, FEATURES, np.arange(SAMPLES))
    return LinearObjective(loss, shard, l2=l2, dtype=dtype)


@given(
    loss=st.sampled_from(LOSSES),
    sparse=st.booleans(),
    l2=st.sampled_from([0.0, 1e-3, 1.0, 4.0]),
    pull=st.sampled_from([0.0, 0.3, 6.0]),
    step_size=st.sampled_from([1e-3, 0.1, 0.2, 0.25, 0.4]),
    batch_size=st.sampled_from([1, 3, None]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_steps_are_those_of_the_pseudocode(
    loss: MarginLoss, sparse: bool, l2: float, pull: float, step_size: float, batch_size: int | None, seed: int
) -> None:
    objective = objective_on(loss, l2, sparse=sparse, seed=seed)
    chance = np.random.default_rng(seed)
    start, anchor = chance.standard_normal((2, FEATURES))
    kept = start.copy()
    batches = list(objective.batches(chance, steps=9, batch_size=batch_size))
    result = descend(objective, start, batches, step_size=step_size, pull=pull, anchor=anchor)
    expected: Vector = start
    for rows in batches:
        expected = step(objective, expected, rows, step_size, pull, anchor)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())
    assert (start == kept).all()


def test_a_step_that_shrinks_everything_to_zero_is_one_like_any_other() -> None:
    objective = objective_on(Squared(), 0.5, sparse=True)
    batches = [np.array([place % SAMPLES]) for place in range(20)]
    start = np.ones(FEATURES)
    expected: Vector = start
    for rows in batches:
        expected = step(objective, expected, rows, 2.0)  # 1 - 2 * 0.5 = 0
    np.testing.assert_allclose(descend(objective, start, batches, step_size=2.0), expected, atol=1e-12)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_thousands_of_shrinking_steps_neither_underflow_nor_lose_digits(dtype: str) -> None:
    objective = objective_on(Logistic(), 1.0, sparse=True, dtype=dtype)
    start: Vector = np.ones(FEATURES, dtype)
    batches = list(objective.batches(np.random.default_rng(1), steps=5000, batch_size=1))
    result = descend(objective, start, batches, step_size=0.3)
    expected: Vector = start
    for rows in batches:
        expected = step(objective, expected, rows, 0.3)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected, atol=50 * float(np.finfo(dtype).eps))
    assert np.abs(expected).max() > 0.01
