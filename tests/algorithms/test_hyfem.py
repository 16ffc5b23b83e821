"""The HyFEM-like algorithm: local models that last, tied to a global one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.settings.run import RunSettings
from tests.algorithms.local_descent import simulated
from tests.algorithms.test_hybrid_fedavg import HINGE, final_model, grid, optimum, run
from tests.conftest import MakeSettings

HALF = {"sampler": {"kind": "fraction", "fraction": 0.5}}


def hyfem(make_settings: MakeSettings, kind: str = "grid", **algorithm: Any) -> RunSettings:
    algorithm = {"name": "hyfem-like", "local_steps": 4, "step_size": 0.5} | algorithm
    return make_settings(**grid(2, 3, kind), objective=HINGE, rounds=6, algorithm=algorithm, participation=HALF)


@pytest.mark.parametrize("kind", ["grid", "ragged"])
@pytest.mark.parametrize(("proximity", "weighting"), [(0.0, "uniform"), (0.4, "samples"), (3.0, "uniform")])
def test_it_is_the_pseudocode(
    kind: str, proximity: float, weighting: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = hyfem(make_settings, kind, proximity=proximity, weighting=weighting)
    np.testing.assert_allclose(final_model(settings, tmp_path), simulated(settings), rtol=0, atol=1e-12)


def test_local_models_go_on_from_where_they_were_not_from_the_global_model(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = hyfem(make_settings, proximity=0.0)
    averaging = {"name": "hybrid-fedavg", "local_steps": 4, "step_size": 0.5}
    fedavg = make_settings(**grid(2, 3), objective=HINGE, rounds=6, algorithm=averaging, participation=HALF)
    assert np.abs(final_model(settings, tmp_path) - final_model(fedavg, tmp_path)).max() > 0.05


@pytest.mark.parametrize(
    ("local_steps", "step_size", "step_offset", "proximity"),
    [
        (2, 0.0774, 0.242, 0.349),
        pytest.param(6, 0.031, 3.93, 0.0213, marks=pytest.mark.faults),  # long; make faults
    ],
)
def test_it_stays_as_far_from_the_optimum_as_averaging_does(
    local_steps: int,
    step_size: float,
    step_offset: float,
    proximity: float,
    make_settings: MakeSettings,
    tmp_path: Path,
) -> None:
    """docs/specifications/hyfdca.md, O9; these are the best of 40 random settings (28 % and 31 %)."""
    settings = make_settings(
        **grid(3, 3),
        objective=HINGE,
        rounds=300,
        seed=0,
        algorithm={
            "name": "hyfem-like",
            "local_steps": local_steps,
            "step_size": step_size,
            "step_offset": step_offset,
            "proximity": proximity,
        },
        evaluation={"every": 300},
    )
    error = run(settings, tmp_path)[0].figures["objective"] / optimum(settings) - 1
    assert 0.2 < error < 0.45
