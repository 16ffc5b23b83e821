"""The abstract objective: mini-batches, and what a subclass gets for nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from tests.messages import raises


class Distance(Objective):
    """Mean of ``|w - x|^2 / 2`` for samples 0, 1, 2, ...: what a user's own objective may look like."""

    def __init__(self, samples: int) -> None:
        super().__init__(dimension=1, samples=samples)

    def loss(self, w: Vector) -> float:
        return float(np.mean((w[0] - self.all_rows) ** 2)) / 2

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        return np.array([w[0] - rows.mean()])

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        return Metrics(self.samples * self.loss(w), None, self.samples)


def draw() -> np.random.Generator:
    return np.random.default_rng(0)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 4))
def test_every_epoch_visits_every_sample_once(samples: int, batch_size: int, epochs: int) -> None:
    batches = list(Distance(samples).batches(draw(), epochs=epochs, batch_size=batch_size))
    a_pass = -(-samples // batch_size)
    assert len(batches) == epochs * a_pass
    for epoch in range(epochs):
        visited = np.concatenate(batches[epoch * a_pass : (epoch + 1) * a_pass])
        np.testing.assert_array_equal(np.sort(visited), np.arange(samples))
    assert {rows.size for rows in batches} <= {min(batch_size, samples), samples % batch_size or batch_size}


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 30))
def test_steps_are_the_beginning_of_the_epochs(samples: int, batch_size: int, steps: int) -> None:
    objective = Distance(samples)
    some = list(objective.batches(draw(), steps=steps, batch_size=batch_size))
    many = list(objective.batches(draw(), epochs=steps, batch_size=batch_size))
    assert len(some) == steps
    for one, other in zip(some, many, strict=False):
        np.testing.assert_array_equal(one, other)


def test_full_batches_are_all_rows_and_draw_nothing() -> None:
    objective, generator = Distance(5), draw()
    for size in (None, 5, 99):
        batches = list(objective.batches(generator, steps=3, batch_size=size))
        assert len(batches) == 3
        assert all(rows is objective.all_rows for rows in batches)
    assert generator.random() == draw().random()


def test_batches_need_one_length_a_positive_size_and_samples() -> None:
    objective = Distance(5)
    with pytest.raises(ValueError):
        objective.batches(draw(), batch_size=2)
    with pytest.raises(ValueError):
        objective.batches(draw(), epochs=1, steps=1)
    with pytest.raises(ValueError):
        objective.batches(draw(), epochs=1, batch_size=0)
    with raises(DataError):
        Distance(0).batches(draw(), epochs=1)


def test_an_objective_of_ones_own_needs_three_methods() -> None:
    objective = Distance(3)
    assert objective.value(np.zeros(1)) == objective.loss(np.zeros(1)) == 5 / 6
    assert objective.gradient(np.zeros(1)) == -1
    assert objective.initial(1) == np.zeros(1)
    assert objective.penalty(np.ones(1)) == 0


@pytest.mark.parametrize(("steps", "size"), [(3, 4), (5, 2), (1, 11), (12, 1)])
def test_batches_of_one_epoch_use_no_sample_twice(steps: int, size: int) -> None:
    drawn = list(Distance(12).batches(np.random.default_rng(0), steps=steps, batch_size=size, draw="epoch"))
    assert [rows.size for rows in drawn] == [size] * steps
    assert len(set(np.concatenate(drawn).tolist())) == steps * size


def test_independent_batches_are_distinct_inside_and_uniform_over_all() -> None:
    draws = np.random.default_rng(1)
    drawn = list(Distance(5).batches(draws, steps=4000, batch_size=2, draw="independent"))
    assert all(len(set(rows.tolist())) == 2 for rows in drawn)
    pairs = {tuple(sorted(rows.tolist())) for rows in drawn[:200]}
    assert len(pairs) == 10
    together = np.mean([set(one.tolist()) == set(other.tolist()) for one, other in itertools.pairwise(drawn)])
    assert together == pytest.approx(1 / 10, abs=0.02)  # 4 standard deviations
    counts = np.bincount(np.concatenate(drawn), minlength=5)
    np.testing.assert_allclose(counts, 1600, atol=130)
