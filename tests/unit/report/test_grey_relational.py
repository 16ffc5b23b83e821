"""Grey relational analysis: by hand, and by what must hold for any criteria."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fenchel.report.columns import Floats
from fenchel.report.grey_relational import choose, grades, normalised

# Few different values, so that ties and constant criteria are common.
COSTS = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=7),
    elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6)),
)


def test_grades_worked_by_hand() -> None:
    # Distances 0, 1; 1/6, 1/6; 1, 0, so with zeta = 1/2 the coefficients are 1, 1/3; 3/4, 3/4; 1/3, 1.
    costs = np.array([[1.0, 4.0], [1.5, 1.5], [4.0, 1.0]])
    np.testing.assert_allclose(normalised(costs), [[1.0, 0.0], [5 / 6, 5 / 6], [0.0, 1.0]])
    np.testing.assert_allclose(grades(normalised(costs)), [2 / 3, 3 / 4, 2 / 3])
    assert choose(costs) == 1
    # With zeta = 1/10 they are 1, 1/11; 3/8, 3/8; 1/11, 1: the best in one criterion before the good in all.
    np.testing.assert_allclose(grades(normalised(costs), 0.1), [6 / 11, 3 / 8, 6 / 11])
    assert choose(costs, 0.1) == 0


def test_grades_where_no_trial_is_ideal() -> None:
    # d_min = 1/4 and d_max = 3/4: (5/7 + 1) / 2 and (5/9 + 5/7) / 2.
    np.testing.assert_allclose(grades(np.array([[0.5, 0.75], [0.25, 0.5]])), [6 / 7, 40 / 63])


def test_a_criterion_in_which_all_are_equal_does_not_tell_them_apart() -> None:
    assert normalised(np.array([[7.0, 1.0], [7.0, 2.0]])).tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert choose(np.array([[7.0, 2.0], [7.0, 1.0]])) == 1


def test_criteria_of_any_size_can_be_normalised() -> None:
    largest = np.finfo(np.float64).max
    assert normalised(np.array([[largest], [-largest], [0.0]])).ravel().tolist() == [0.0, 1.0, 0.5]


@given(COSTS)
def test_a_trial_that_is_nowhere_worse_has_no_smaller_grade(costs: Floats) -> None:
    found = grades(normalised(costs))
    assert ((found > 0) & (found <= 1)).all()
    for mine, grade in zip(costs, found, strict=True):
        worse = (costs >= mine).all(axis=1)
        assert (found[worse] <= grade + 1e-12).all()


@given(COSTS)
def test_units_do_not_matter(costs: Floats) -> None:
    np.testing.assert_allclose(normalised(4 * costs), normalised(costs), atol=1e-9)


@pytest.mark.parametrize("count", [1, 3])
def test_of_equal_trials_the_first_is_chosen(count: int) -> None:
    assert choose(np.full((count, 4), 2.5)) == 0
