"""Data and settings for the tests of objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.sparse as sp
from pydantic import TypeAdapter
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from fenchel.common.data.shard import Shard
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import ObjectiveSettings

MakeShard: TypeAlias = Callable[..., Shard]
MakeObjective: TypeAlias = Callable[..., Objective]


def shard_of(features: Any, labels: Any, classes: int) -> Shard:
    return Shard(
        features=features,
        labels=np.asarray(labels),
        classes=classes,
        total_features=features.shape[1],
        samples_held=np.arange(features.shape[0], dtype=np.int64),
    )


@pytest.fixture(scope="session")
def make_shard() -> MakeShard:
    """A shard of given arrays, or of random ones."""

    def make(
        samples: int = 12,
        features: int = 5,
        classes: int = 2,
        *,
        seed: int = 0,
        sparse: bool = False,
        arrays: tuple[Any, Any] | None = None,
    ) -> Shard:
        if arrays is not None:
            return shard_of(*arrays, classes)
        draw = np.random.default_rng(seed)
        x = draw.standard_normal((samples, features))
        x[draw.random(x.shape) < 0.4] = 0
        labels = draw.integers(0, classes, samples) if classes else draw.standard_normal(samples)
        return shard_of(sp.csr_array(x) if sparse else x, labels, classes)

    return make


@pytest.fixture(scope="session")
def make_objective() -> MakeObjective:
    """An objective from the words of a settings file."""

    def make(shard: Shard, **section: Any) -> Objective:
        adapter: TypeAdapter[ObjectiveSettings] = TypeAdapter(ObjectiveSettings)
        return build_objective(adapter.validate_python(section), shard)

    return make


@pytest.fixture(scope="session")
def breast_cancer() -> Shard:
    """The training set of docs/specifications/hyfdca.md, section 5.2: standardised, then rows of unit norm."""
    x, y = load_breast_cancer(return_X_y=True)
    x, _, y, _ = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return shard_of(x, y, 2)
