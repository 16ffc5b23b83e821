"""Proximal operators and subgradients, against searches over grids and the definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.regularizer import Regularizer, build_regularizer
from fenchel.common.settings.regularizer import RegularizerSettings
from tests.messages import raises
from tests.unit.objectives.problems import make_objective, make_shard

ADAPTER: TypeAdapter[RegularizerSettings] = TypeAdapter(RegularizerSettings)

KINDS: list[dict[str, Any]] = [
    {"kind": "none"},
    {"kind": "l1", "weight": 0.7},
    {"kind": "squared-l2", "weight": 0.7},
    {"kind": "elastic-net", "weight": 0.7, "ridge": 0.4},
    {"kind": "group-lasso", "weight": 0.7},
    {"kind": "group-lasso", "weight": 0.7, "groups": "rows"},
    {"kind": "box", "lower": -0.3, "upper": 0.8},
    {"kind": "mcp", "weight": 0.7, "theta": 1.5},
    {"kind": "l0", "weight": 0.7},
]


def named(section: dict[str, Any]) -> str:
    return "-".join(map(str, section.values()))


every = pytest.mark.parametrize("section", KINDS, ids=named)
with_subgradients = pytest.mark.parametrize("section", KINDS[:6], ids=named)
coordinates = st.floats(-3, 3).filter(lambda x: x == 0 or abs(x) > 1e-9)
models = st.lists(coordinates, min_size=6, max_size=6).map(np.array)
penalties = st.floats(0.8, 5)  # above 1/theta of the section mcp


def made(section: dict[str, Any], shape: tuple[int, int] | None = (2, 3)) -> Regularizer:
    return build_regularizer(ADAPTER.validate_python(section), shape)


def merit(h: Regularizer, x: Vector, u: Vector, penalty: float) -> float:
    return h.value(x) + penalty / 2 * float((x - u) @ (x - u))


@every
@given(u=st.lists(st.floats(-3, 3), min_size=2, max_size=2), penalty=penalties)
def test_the_operator_is_as_good_as_the_best_point_of_a_grid(
    section: dict[str, Any], u: list[float], penalty: float
) -> None:
    # Two weights: a group of two for the rows of a (1, 2) matrix and the features of a (2, 1) matrix.
    h = made(section, (1, 2) if section.get("groups") == "rows" else (2, 1))
    at = np.array(u)
    found = merit(h, h.prox(at, penalty), at, penalty)
    axis = np.linspace(-3, 3, 31)
    best = min(merit(h, np.array(x), at, penalty) for x in itertools.product(axis, axis))
    assert found <= best + 1e-9
    assert math.isfinite(found)


@with_subgradients
@given(x=models, y=models)
def test_a_subgradient_supports_the_graph_of_a_convex_term(section: dict[str, Any], x: Vector, y: Vector) -> None:
    h = made(section)
    assert h.value(y) >= h.value(x) + h.subgradient(x) @ (y - x) - 1e-9


@given(x=models)
def test_the_subgradient_of_mcp_is_its_derivative_off_the_corners(x: Vector) -> None:
    h, step = made({"kind": "mcp", "weight": 0.7, "theta": 1.5}), 1e-7
    for i, e in enumerate(np.eye(6)):
        if abs(x[i]) > 1e-6:
            slope = (h.value(x + step * e) - h.value(x - step * e)) / (2 * step)
            assert h.subgradient(x)[i] == pytest.approx(slope, abs=1e-6)


@every
def test_float32_stays_float32_and_nothing_is_changed(section: dict[str, Any]) -> None:
    h, u = made(section), np.linspace(-2, 2, 6, dtype=np.float32)
    u.setflags(write=False)
    out = h.prox(u, 2.0)
    assert out.dtype == np.float32
    assert out.flags.writeable
    assert isinstance(h.value(u), float)
    if section["kind"] not in ("box", "l0"):
        assert h.subgradient(u).dtype == np.float32


def test_groups_are_the_columns_or_the_rows_of_the_matrix() -> None:
    x = np.array([3.0, 0.0, 0.1, 4.0, 0.0, 0.0])  # rows (3, 0, 0.1) and (4, 0, 0)
    features, rows = made({"kind": "group-lasso", "weight": 1}), made(KINDS[5] | {"weight": 1})
    assert features.value(x) == pytest.approx(5 + 0 + 0.1)
    assert rows.value(x) == pytest.approx(math.hypot(3, 0.1) + 4)
    np.testing.assert_allclose(features.prox(x, 1.0), [3 * 0.8, 0, 0, 4 * 0.8, 0, 0], atol=1e-15)


def test_a_mean_of_models_in_the_box_is_in_the_box_whatever_the_rounding() -> None:
    h = made({"kind": "box", "lower": -0.1, "upper": 0.1})
    mean = np.mean(np.full((3, 6), 0.1), axis=0) + 1e-17
    assert h.value(np.nextafter(mean, 1)) == 0
    assert h.value(np.full(6, 0.1001)) == math.inf


@pytest.mark.parametrize("section", [KINDS[6], KINDS[8]], ids=["box", "l0"])
def test_bounds_and_counts_have_no_subgradient(section: dict[str, Any]) -> None:
    with raises(SettingsError, key="objective.regularizer.kind"):
        made(section).subgradient(np.zeros(6))


def test_mcp_refuses_a_penalty_that_it_is_not_defined_for() -> None:
    with raises(SettingsError, key="objective.regularizer.theta"):
        made(KINDS[7]).prox(np.zeros(6), 2 / 3)


def test_group_lasso_refuses_a_network() -> None:
    pytest.importorskip("torch")
    with raises(SettingsError, key="objective.regularizer.kind"):
        make_objective(make_shard(classes=3), kind="mlp", regularizer={"kind": "group-lasso", "weight": 1})


def test_the_factory_gives_every_objective_its_term() -> None:
    objective = make_objective(make_shard(features=3, classes=2), kind="softmax", regularizer=KINDS[4])
    plain = make_objective(make_shard(features=3, classes=2), kind="softmax")
    x = np.array([3.0, 0.0, 0.0, 4.0, 0.0, 0.0])
    assert objective.regularizer.value(x) == pytest.approx(0.7 * 5)
    assert plain.regularizer.value(x) == 0
    assert objective.value(x) == plain.value(x), "h is no part of a client's objective"
