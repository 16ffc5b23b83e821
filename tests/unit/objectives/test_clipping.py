"""Clipped gradients, against a loop over samples that knows nothing but gradients of one sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Indices, Vector
from fenchel.common.objectives.objective import Objective
from tests.unit.objectives.problems import make_objective, make_shard

LINEAR: list[tuple[dict[str, Any], int]] = [
    ({"kind": "squared"}, 0),
    ({"kind": "logistic", "nonconvex": 0.5}, 2),
    ({"kind": "hinge"}, 2),
    ({"kind": "softmax"}, 4),
    ({"kind": "one-sided-logistic", "nonconvex": 0.5}, 3),
]
linear = pytest.mark.parametrize(("section", "classes"), LINEAR, ids=str)
dense_and_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def looped(bare: Objective, whole: Objective, w: Vector, rows: Indices, bound: float) -> tuple[Vector, int]:
    """The definition, and how many samples it clips; ``bare`` is the objective without its penalty."""
    total, clipped = np.zeros_like(w), 0
    for row in rows:
        v = bare.batch_gradient(w, np.array([row]))
        norm = float(np.linalg.norm(v))
        clipped += int(norm > bound)
        total += v * min(1.0, bound / norm) if norm else v
    of_penalty = whole.gradient(w) - bare.gradient(w)
    return total / rows.size + of_penalty, clipped


@linear
@dense_and_sparse
@given(seed=st.integers(0, 2**32 - 1), bound=st.floats(0.05, 4))
def test_linear_models_clip_as_a_loop_over_samples_does(
    section: dict[str, Any], classes: int, sparse: bool, seed: int, bound: float
) -> None:
    shard = make_shard(classes=classes, seed=seed, sparse=sparse)
    whole = make_objective(shard, l2=0.3, **section)
    bare = make_objective(shard, **{**section, "nonconvex": 0})
    w = np.random.default_rng(seed).standard_normal(whole.dimension)
    for rows in (np.array([3, 1, 4, 1]), whole.all_rows):
        wanted, _ = looped(bare, whole, w, rows, bound)
        np.testing.assert_allclose(whole.clipped_gradient(w, rows, bound), wanted, atol=1e-12)


@linear
def test_a_bound_that_nobody_reaches_changes_no_bit(section: dict[str, Any], classes: int) -> None:
    objective = make_objective(make_shard(classes=classes), l2=0.3, **section)
    w = np.random.default_rng(2).standard_normal(objective.dimension)
    np.testing.assert_array_equal(objective.clipped_gradient(w, objective.all_rows, 1e6), objective.gradient(w))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_networks_clip_as_a_loop_over_samples_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    shard = make_shard(9, 64, 3, seed=1)
    whole = make_objective(shard, kind=kind, l2=0.1, dtype="float64")
    bare = make_objective(shard, kind=kind, dtype="float64")
    monkeypatch.setattr("fenchel.common.objectives.networks.objective.GRADIENTS", 2 * whole.dimension)  # chunks of two
    w, rows = whole.initial(2), np.arange(9)
    bound = float(np.median([np.linalg.norm(bare.batch_gradient(w, np.array([row]))) for row in rows]))
    wanted, clipped = looped(bare, whole, w, rows, bound)
    assert 0 < clipped < 9
    np.testing.assert_allclose(whole.clipped_gradient(w, rows, bound), wanted, atol=1e-12)
    np.testing.assert_allclose(whole.clipped_gradient(w, rows, 1e6), whole.gradient(w), atol=1e-12)
