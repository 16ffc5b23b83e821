"""Data of the specification."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from fenchel.common.data.shard import Shard
from tests.unit.objectives.problems import shard_of


@pytest.fixture(scope="session")
def breast_cancer() -> Shard:
    """The training set of docs/specifications/hyfdca.md, section 5.2: standardised, then rows of unit norm."""
    x, y = load_breast_cancer(return_X_y=True)
    x, _, y, _ = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return shard_of(x, y, 2)
