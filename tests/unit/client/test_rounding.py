"""The sensitivity that noise covers is the distance of real uploads, also where numbers are too small to be exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fenchel.client.privacy.protection import Protection
from fenchel.client.session import ClientData, Session
from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.settings.run import RunSettings, validate
from tests.unit.client.tally import handled

SAMPLES, FEATURES = 40, 30
SINGLE = np.float32


def settings_of(
    step_size: float, *, objective: dict[str, Any] | None = None, clip: float = 0.01, **algorithm: Any
) -> RunSettings:
    local = {"name": "fedavg", "local_steps": 4, "batch_size": 10, "batches": "epoch", "step_size": step_size}
    privacy = {"mechanism": "contractive", "clip": clip, "feature_norm": 1.0, "noise_multiplier": 4.0}
    return validate(
        {
            "rounds": 1,
            "clients": 1,
            "data": {"name": "digits"},
            "objective": {"kind": "logistic", "dtype": "float32"} | (objective or {}),
            "algorithm": local | algorithm,
            "differential_privacy": privacy,
        }
    )


def neighbours() -> tuple[ClientData, ClientData]:
    """Return two data sets, of which one sample is another."""
    chance = np.random.default_rng(0)
    features = chance.normal(size=(SAMPLES, FEATURES)).astype(SINGLE)
    labels = chance.integers(0, 2, SAMPLES)
    others = features.copy()
    others[7] = -10 * others[7]

    def held(samples: NDArray[np.float32]) -> ClientData:
        return ClientData(Shard(samples, labels, 2, FEATURES, np.arange(SAMPLES)))

    return held(features), held(others)


@pytest.mark.parametrize("step_size", [1e-42, 1e-41, 1e-40])
@pytest.mark.parametrize("algorithm", [{}, {"name": "fedprox", "proximity": 0.5}], ids=["fedavg", "fedprox"])
def test_uploads_of_neighbours_are_no_further_apart_than_noise_covers(
    algorithm: dict[str, Any], step_size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    distance, covered = distance_and_cover(settings_of(step_size, **algorithm), neighbours(), monkeypatch)
    assert 0 < distance <= covered


@pytest.mark.parametrize(("steps", "step_size"), [(200, 0.3), (300, 0.7), (1000, 0.9)])
def test_noise_covers_the_rounding_of_models_that_steps_lead_away_from_zero(
    steps: int, step_size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All gradients are clipped to the same number, so each step adds it to a model that is known in fewer and fewer
    # digits. Two models that are apart by one such gradient are rounded differently.
    hinge = {"kind": "smoothed-hinge", "smoothing": 0.5}
    settings = settings_of(step_size, objective=hinge, clip=0.0004, local_steps=steps, batch_size=1)
    holdings = []
    for last in (1, -1):
        features = np.ones((steps, 1), SINGLE)
        features[0] = last
        holdings.append(ClientData(Shard(features, np.ones(steps, np.int64), 2, 1, np.arange(steps))))
    distance, covered = distance_and_cover(settings, (holdings[0], holdings[1]), monkeypatch)
    assert 0 < distance <= covered


def distance_and_cover(
    settings: RunSettings, holdings: tuple[ClientData, ClientData], monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float]:
    """Return the distance of the uploads of two data sets, from the zero model, and the distance that noise covers."""
    uploads: list[NDArray[np.float64]] = []
    covered: list[float] = []

    def keep(
        protection: Protection, values: Vector, t: int, name: str, sensitivity: float, largest: float, occasion: bytes
    ) -> Vector:
        uploads.append(values.astype(np.float64))
        covered.append(sensitivity + protection.rounding(values, largest))
        return values

    monkeypatch.setattr(Protection, "released", keep)
    monkeypatch.setattr("os.urandom", bytes)  # so that both draw the same batches
    for holding in holdings:
        session = Session("client-0", settings, holding)
        answer = handled(session, "train", 1, 0, model=np.zeros(holding.shard.total_features, SINGLE))
        assert not answer.head.failure, answer.head.failure
    assert covered[0] == covered[1]
    unit = float(np.finfo(SINGLE).smallest_subnormal)
    return float(np.linalg.norm((uploads[0] - uploads[1]) / unit)) * unit, covered[0]  # squares of units are no zeros
