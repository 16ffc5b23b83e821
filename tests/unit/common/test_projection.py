"""Projections: nearest points, by what a nearest point must satisfy and by other ways to find it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.optim.projection import onto, onto_simplex
from fenchel.common.settings.constraint import BallConstraint, BoxConstraint, NoConstraint

Point = NDArray[np.float64]
COORDINATES = st.floats(-100, 100, allow_subnormal=False)
POINTS = st.lists(COORDINATES, min_size=1, max_size=6).map(lambda x: np.array(x, np.float64))


def by_trying_all_faces(x: Point) -> Point:
    """The nearest of the nearest points on the planes of all faces, among those that lie in the simplex."""
    candidates = []
    for size in range(1, x.size + 1):
        for face in itertools.combinations(range(x.size), size):
            point = np.zeros(x.size)
            kept = list(face)
            point[kept] = x[kept] - (x[kept].sum() - 1) / size
            if (point >= -1e-12).all():
                candidates.append(point)
    return min(candidates, key=lambda point: float(((point - x) ** 2).sum()))


@given(x=POINTS)
def test_the_simplex_is_projected_onto_as_by_trying_all_faces(x: Point) -> None:
    point = onto_simplex(x)
    assert (point >= 0).all()
    assert abs(point.sum() - 1) < 1e-12
    np.testing.assert_allclose(point, by_trying_all_faces(x), rtol=0, atol=1e-10)


@given(x=POINTS, shift=st.floats(-1e6, 1e6))
def test_a_shift_changes_nothing_and_order_is_kept(x: Point, shift: float) -> None:
    point = onto_simplex(x)
    np.testing.assert_allclose(onto_simplex(x + shift), point, rtol=0, atol=1e-8)
    np.testing.assert_allclose(onto_simplex(point), point, rtol=0, atol=1e-15)
    order = np.argsort(x, kind="stable")
    assert (np.diff(point[order]) >= 0).all()


@pytest.mark.parametrize("x", [[1e17, 0.0], [1e300, 1e300, -1e300], [-1e17, -1e17]])
def test_large_entries_are_no_trouble(x: list[float]) -> None:
    point = onto_simplex(np.array(x))
    largest = np.array(x) == max(x)
    np.testing.assert_allclose(point, largest / largest.sum(), rtol=0, atol=1e-15)


@given(x=POINTS, radius=st.floats(0.1, 50))
def test_a_ball_is_reached_along_the_ray(x: Point, radius: float) -> None:
    point, norm = onto(BallConstraint(kind="ball", radius=radius), x), float(np.linalg.norm(x))
    if norm <= radius:
        assert point is x
    else:
        np.testing.assert_allclose(point * norm, x * radius, rtol=1e-12, atol=1e-12)


@given(x=POINTS, bounds=st.tuples(COORDINATES, COORDINATES).map(sorted))
def test_a_box_is_reached_coordinate_by_coordinate(x: Point, bounds: list[float]) -> None:
    lower, upper = bounds
    point = onto(BoxConstraint(kind="box", lower=lower, upper=upper), x)
    assert point.tolist() == [min(max(entry, lower), upper) for entry in x.tolist()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_stays(dtype: type[np.floating]) -> None:
    w = np.array([3, 4], dtype)
    assert onto(NoConstraint(kind="none"), w) is w
    for constraint in (BallConstraint(kind="ball", radius=1), BoxConstraint(kind="box", lower=0, upper=1)):
        assert onto(constraint, w).dtype == dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_in_words(bad: float) -> None:
    with pytest.raises(ValueError):
        onto_simplex(np.array([0.5, bad, 0.5]))
