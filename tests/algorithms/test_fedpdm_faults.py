"""What came too late: what the server has of the clients is what the clients have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.fedpdm import FedPDM, FedPDMClient
from tests.algorithms.fedpdm_oracle import Variant, simulated
from tests.algorithms.fedpdm_runs import EVERYBODY, SEED, real
from tests.algorithms.mlr import Run, reproducible
from tests.algorithms.straggler import late, missed
from tests.slow import rest_slow

SMALL: dict[str, Any] = {"batch_size": 2, "gamma": 0.01}
VARIANTS: Mapping[str, Variant] = {
    "hybrid": Variant(aggregator="hybrid", support="random", keep=0.5, hold=True, noise=0.05, **SMALL),
    "stale": Variant(aggregator="stale", public=True, support="shared-random", keep=0.5, noise=0.05, **SMALL),
    "ef21 stale": Variant(aggregator="stale", support="top-k", keep=0.3, ef21=True, **SMALL),
    "ef21 sampled": Variant(aggregator="sampled", support="top-k", keep=0.3, ef21=True, **SMALL),
}


def assert_mirrored(name: str, run: Run) -> None:
    """What the server keeps of the clients is what they have themselves."""
    last: FedPDM.State = run.states[max(run.states)]
    if name == "hybrid":
        mean = np.mean(run.client_states("dual"), axis=0)
        np.testing.assert_allclose(last.mean_dual, mean, rtol=0, atol=1e-14)
        assert np.abs(mean).max() > 1e-3
        return
    mirrored = run.client_states("mirrored")
    assert np.abs(mirrored).max() > 1e-3
    if name == "ef21 sampled":
        assert len(last.replicas) == 4
        for client, own in zip(sorted(last.replicas), mirrored, strict=True):
            assert last.replicas[client].tobytes() == own.tobytes()
    else:
        np.testing.assert_allclose(last.mean_upload, np.mean(mirrored, axis=0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", rest_slow(VARIANTS))
def test_what_came_too_late_is_undone_on_both_sides(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, problem = VARIANTS[name], reproducible()
    with late(monkeypatch, FedPDMClient, "client-001", 2) as slow:
        run = real(problem, variant, tmp_path, [EVERYBODY] * 4, **slow)
    assert missed(run.calls) == {(2, "client-001")}
    cohorts = [EVERYBODY, (0, 2, 3), EVERYBODY, EVERYBODY]
    trace = simulated(problem, variant, cohorts, SEED)
    np.testing.assert_allclose(run.models, trace.models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.client_states("dual"), trace.duals, rtol=0, atol=1e-12)
    assert_mirrored(name, run)
