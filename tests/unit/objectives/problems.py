"""Data and objectives for the tests of objectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from pydantic import TypeAdapter

from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import ObjectiveSettings

ADAPTER: TypeAdapter[ObjectiveSettings] = TypeAdapter(ObjectiveSettings)


def shard_of(features: Any, labels: Any, classes: int) -> Shard:
    return Shard(
        features=features,
        labels=np.asarray(labels),
        classes=classes,
        total_features=features.shape[1],
        samples_held=np.arange(features.shape[0], dtype=np.int64),
    )


def make_shard(
    samples: int = 12,
    features: int = 5,
    classes: int = 2,
    *,
    seed: int = 0,
    sparse: bool = False,
    arrays: tuple[Any, Any] | None = None,
) -> Shard:
    """A shard of given arrays, or of random ones."""
    if arrays is not None:
        return shard_of(*arrays, classes)
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((samples, features))
    x[draw.random(x.shape) < 0.4] = 0
    labels = draw.integers(0, classes, samples) if classes else draw.standard_normal(samples)
    return shard_of(sp.csr_array(x) if sparse else x, labels, classes)


def make_objective(shard: Shard, **section: Any) -> Objective:
    """An objective from the words of a settings file."""
    return build_objective(ADAPTER.validate_python(section), shard)


def clipped_by_a_loop(bare: Objective, whole: Objective, w: Vector, rows: Indices, bound: float) -> tuple[Vector, int]:
    """The definition of clipping, and how many samples it clips; ``bare`` is the objective without its penalty."""
    total, clipped = np.zeros_like(w), 0
    for row in rows:
        v = bare.batch_gradient(w, np.array([row]))
        norm = float(np.linalg.norm(v))
        clipped += int(norm > bound)
        total += v * min(1.0, bound / norm) if norm else v
    of_penalty = whole.gradient(w) - bare.gradient(w)
    return total / rows.size + of_penalty, clipped
