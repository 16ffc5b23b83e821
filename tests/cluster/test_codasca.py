"""CODASCA over gRPC: killed clients change no bit, and c is still the mean of what the clients hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.auc.codasca import Codasca
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server import checkpoint as checkpoints
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest

pytestmark = pytest.mark.cluster


def settings(wire: str) -> dict[str, Any]:
    return {
        "name": "codasca",
        "seed": 11,
        "rounds": 60,
        "clients": 3,
        "data": {"name": "breast_cancer", "scale": "standard", "partition": {"kind": "dirichlet", "alpha": 0.5}},
        "objective": {"kind": "binary"},
        "algorithm": {
            "name": "codasca",
            "wire": wire,
            "local_steps": 4,
            "step_size": 0.02,
            "schedule": {"kind": "practice", "stage_steps": 60},
        },
        "evaluation": {"server": False, "clients": False},
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wire", ["paper", pytest.param("compact", marks=pytest.mark.faults)])  # long; make faults
def test_a_killed_client_changes_no_bit_and_no_control_variate_is_lost(
    wire: str, federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(wire))
    run = federation.finish_through_kills(dict(zip((5, 15, 30), federation.names, strict=True)))
    reference = RunFolder.create(tmp_path, "reference")
    asyncio.run(run_in_process(validate(settings(wire)), reference))
    assert digest(run / "model.npz") == digest(reference.model)
    controls = [np.asarray(kept["state/control"], np.float64) for kept in federation.kept(run)]
    control = checkpoints.load(RunFolder(run).checkpoint).state(Codasca.State).control
    assert np.abs(controls).max() > 1e-3
    np.testing.assert_allclose(control, np.mean(controls, axis=0), rtol=0, atol=1e-6)
