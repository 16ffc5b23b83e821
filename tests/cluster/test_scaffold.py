"""SCAFFOLD over gRPC: a client is killed, and the server's c is still the mean of what the clients hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.scaffold import Scaffold
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server import checkpoint as checkpoints
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest

pytestmark = pytest.mark.cluster


def settings(rounds: int) -> dict[str, Any]:
    return {
        "name": "scaffold",
        "seed": 11,
        "rounds": rounds,
        "clients": 3,
        "data": {"name": "digits", "scale": "unit-interval", "partition": {"kind": "dirichlet", "alpha": 0.3}},
        "objective": {"kind": "softmax", "l2": 0.01},
        "algorithm": {"name": "scaffold", "local_epochs": 2, "batch_size": 8, "step_size": 0.02},
        "participation": {"sampler": {"kind": "fixed", "size": 2}},
        "evaluation": {"server": False, "clients": False},
    }


@pytest.mark.timeout(300)
def test_a_killed_client_changes_no_bit_and_no_control_variate_is_lost(
    federate: MakeFederation, tmp_path: Path
) -> None:
    rounds = 80
    federation = federate(settings(rounds))
    run = federation.finish_through_kills(dict(zip((5, 20, 40), federation.names, strict=True)))
    reference = RunFolder.create(tmp_path, "reference")
    asyncio.run(run_in_process(validate(settings(rounds)), reference))
    assert digest(run / "model.npz") == digest(reference.model)
    controls = [np.asarray(kept["state/control"]) for kept in federation.kept(run)]
    control = checkpoints.load(RunFolder(run).checkpoint).state(Scaffold.State).control
    assert np.abs(controls).max() > 1e-3
    np.testing.assert_allclose(control, np.mean(controls, axis=0), rtol=0, atol=1e-14)
