"""Real targets of any size: an encrypted run of HyFDCA with the squared loss ends where the plaintext one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.settings.run import RunSettings, validate
from tests.algorithms.hybrid import KEY_BITS, Laboratory, distance
from tests.slow import rest_slow

SAMPLES, FEATURES, ROUNDS = 40, 6, 6


def regression(folder: Path, low: float, high: float, l2: float, **algorithm: Any) -> RunSettings:
    """Return the settings of a run with targets of this range, spread over two by two clients."""
    random = np.random.default_rng(7)
    features = random.standard_normal((SAMPLES, FEATURES))
    targets = low + (high - low) * random.random(SAMPLES)
    targets[:2] = low, high
    data = folder / "regression.npz"
    np.savez(data, X=features, y=targets)
    return validate(
        {
            "name": "regression",
            "seed": 5,
            "rounds": ROUNDS,
            "clients": 4,
            "data": {
                "file": str(data),
                "test_fraction": 0,
                "task": "regression",
                "scale": ["unit-rows"],
                "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
            },
            "objective": {"kind": "squared", "l2": l2},
            "algorithm": {"name": "hyfdca", "encryption": {"key_bits": KEY_BITS}, **algorithm},
            "evaluation": {"server": False, "clients": False, "training": False},
        }
    )


@pytest.mark.parametrize(
    ("low", "high", "l2", "algorithm"),
    rest_slow(
        [
            (-1.0, 1.0, 0.01, {}),
            (-10.0, 20.0, 1e4, {"protect_primal": True}),
            (-3000.0, -1000.0, 0.01, {"protect_primal": True}),
            (-3000.0, -1000.0, 100.0, {"preset": "exact", "picks": 4}),
            (0.0, 1e-3, 1.0, {"preset": "safe"}),
            (0.0, 1e-3, 1e4, {}),
        ],
        2,
    ),
)
def test_an_encrypted_regression_ends_where_the_plaintext_one_does(
    low: float, high: float, l2: float, algorithm: dict[str, Any], laboratory: Laboratory, tmp_path: Path
) -> None:
    encrypted = laboratory.run(regression(tmp_path, low, high, l2, **algorithm))
    clear = {name: value for name, value in algorithm.items() if name != "protect_primal"}
    plain = laboratory.run(regression(tmp_path, low, high, l2, **clear, privacy="none"))
    largest = max(abs(low), abs(high))
    # Values are multiples of 2^-40; scores add some of them up, and the line search divides small numbers.
    precision = 2.0**-29 + 1e-11 * largest
    assert distance(encrypted.duals, plain.duals) <= precision
    assert np.abs(encrypted.model - plain.model).max() <= precision / l2
    moved = np.concatenate(list(plain.duals.values()))
    assert np.abs(moved).max() > 0.01 * largest, "and the run did something"
