"""Pareto front and grey relational analysis: by hand, and by what must hold for any criteria."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fenchel.report.tuning.selection import Floats, choose, grey_relational_grades, normalised, pareto_front

# Few different values, so that ties and constant criteria are common.
COSTS = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=7),
    elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6)),
)


def dominates(mine: Floats, others: Floats) -> bool:
    return bool((mine <= others).all() and (mine < others).any())


def test_grades_worked_by_hand() -> None:
    # Distances 0, 1; 1/6, 1/6; 1, 0 on the front, so with zeta = 1/2 the coefficients are 1, 1/3; 3/4, 3/4; 1/3, 1.
    costs = np.array([[1.0, 4.0], [1.5, 1.5], [4.0, 1.0], [4.0, 4.0]])
    choice = choose(costs, zeta=0.5)
    assert choice.front.tolist() == [True, True, True, False]
    np.testing.assert_allclose(choice.goodness[:3], np.array([[1.0, 0.0], [5 / 6, 5 / 6], [0.0, 1.0]]))
    np.testing.assert_allclose(choice.grades[:3], [2 / 3, 3 / 4, 2 / 3])
    assert math.isnan(choice.grades[3])
    assert choice.best == 1


def test_a_small_zeta_prefers_the_best_in_one_criterion_to_the_good_in_all() -> None:
    # Coefficients with zeta = 1/10: 1, 1/11; 3/8, 3/8.
    choice = choose(np.array([[1.0, 4.0], [1.5, 1.5], [4.0, 1.0]]), zeta=0.1)
    np.testing.assert_allclose(choice.grades, [6 / 11, 3 / 8, 6 / 11])
    assert choice.best == 0  # the first of the two that are equal


def test_grades_where_no_run_is_ideal() -> None:
    # d_min = 1/4 and d_max = 3/4: (5/7 + 1) / 2 and (5/9 + 5/7) / 2.
    grades = grey_relational_grades(np.array([[0.5, 0.75], [0.25, 0.5]]), zeta=0.5)
    np.testing.assert_allclose(grades, [6 / 7, 40 / 63])


def test_a_criterion_in_which_all_are_equal_does_not_tell_them_apart() -> None:
    assert normalised(np.array([[7.0, 1.0], [7.0, 2.0]])).tolist() == [[1.0, 1.0], [1.0, 0.0]]
    # One and the same criterion twice is no tie-break for the second run.
    assert choose(np.array([[7.0, 2.0], [7.0, 1.0]]), zeta=0.5).best == 1


@pytest.mark.parametrize("count", [1, 3])
def test_equal_runs_are_all_on_the_front_and_the_first_is_chosen(count: int) -> None:
    choice = choose(np.full((count, 4), 2.5), zeta=0.5)
    assert choice.front.all()
    assert choice.grades.tolist() == [1.0] * count
    assert choice.best == 0


def test_criteria_of_any_size_can_be_normalised() -> None:
    largest = np.finfo(np.float64).max
    assert normalised(np.array([[largest], [-largest], [0.0]])).ravel().tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("costs", [np.empty((0, 3)), np.array([[1.0, math.nan]]), np.array([[math.inf]])])
def test_what_cannot_be_compared_is_refused(costs: Floats) -> None:
    with pytest.raises(ValueError):
        choose(costs, zeta=0.5)


@given(COSTS)
def test_the_front_is_who_is_not_dominated(costs: Floats) -> None:
    front = pareto_front(costs)
    assert front.any()
    for i, mine in enumerate(costs):
        # Whoever is dominated is dominated by somebody on the front, too.
        assert front[i] != any(dominates(other, mine) for other in costs[front])


@given(COSTS, st.integers(0, 1000))
def test_the_front_depends_neither_on_the_order_nor_on_the_scale(costs: Floats, seed: int) -> None:
    front = pareto_front(costs)
    order = np.random.default_rng(seed).permutation(len(costs))
    np.testing.assert_array_equal(pareto_front(costs[order]), front[order])
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in costs.T], axis=1)
    np.testing.assert_array_equal(pareto_front(ranks.astype(np.float64)), front)


@given(COSTS, st.floats(0.01, 1.0))
def test_grades_lie_where_they_must_and_the_best_is_on_the_front(costs: Floats, zeta: float) -> None:
    choice = choose(costs, zeta)
    grades = choice.grades[choice.front]
    assert (grades <= 1 + 1e-12).all()
    assert (grades >= zeta / (1 + zeta) - 1e-12).all()
    assert choice.front[choice.best]
    assert choice.grades[choice.best] == np.nanmax(choice.grades)


@given(COSTS)
def test_who_is_best_in_everything_is_chosen_with_grade_one(costs: Floats) -> None:
    ideal = np.vstack([costs, costs.min(axis=0) - 1])
    choice = choose(ideal, zeta=0.5)
    assert choice.front.tolist() == [False] * len(costs) + [True]
    assert (choice.best, choice.grades[-1]) == (len(costs), 1.0)


@given(COSTS, st.integers(-8, 8), st.integers(-100, 100))
def test_units_do_not_matter(costs: Floats, exponent: int, shift: int) -> None:
    whole = np.rint(costs)
    grades = choose(whole, 0.5).grades
    np.testing.assert_allclose(choose(whole * 2.0**exponent + shift * 2.0**exponent, 0.5).grades, grades, rtol=1e-9)
