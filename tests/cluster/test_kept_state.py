"""Killed processes change no bit, and what a server keeps is still the mean of what its clients have on their disks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.registry import server_half
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server import checkpoint as checkpoints
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest
from tests.cluster.test_fedpdm import settings as fedpdm
from tests.slow import rest_slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def common(**sections: Any) -> dict[str, Any]:
    off = {"server": False, "clients": False}
    return {"name": "kept", "seed": 11, "rounds": 60, "clients": 3, "evaluation": off} | sections


def codasca(wire: str) -> dict[str, Any]:
    schedule = {"kind": "practice", "stage_steps": 60}
    return common(
        data={"name": "breast_cancer", "scale": "standard", "partition": {"kind": "dirichlet", "alpha": 0.5}},
        objective={"kind": "binary"},
        algorithm={"name": "codasca", "wire": wire, "local_steps": 4, "step_size": 0.02, "schedule": schedule},
    )


SCAFFOLD = common(
    data={"name": "digits", "scale": "unit-interval", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    objective={"kind": "softmax", "l2": 0.01},
    algorithm={"name": "scaffold", "local_epochs": 2, "batch_size": 8, "step_size": 0.02},
    participation={"sampler": {"kind": "fixed", "size": 2}},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "client", "server", "tolerance"),
    rest_slow(
        [
            pytest.param(SCAFFOLD, "control", "control", 1e-14, id="scaffold"),
            pytest.param(fedpdm(60, "random", aggregator="hybrid"), "dual", "mean_dual", 1e-13, id="fedpdm"),
            pytest.param(codasca("paper"), "control", "control", 1e-6, id="codasca-paper"),
            pytest.param(codasca("compact"), "control", "control", 1e-6, id="codasca", marks=pytest.mark.slow),  # long
        ]
    ),
)
def test_kills_change_no_bit_and_the_mean_of_what_clients_keep_is_kept(
    settings: dict[str, Any], client: str, server: str, tolerance: float, federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings)
    victims = dict(zip((5, 15, 25, 35), (*federation.names, "server"), strict=True))
    run = RunFolder(federation.finish_through_kills(victims))
    reference = RunFolder.create(tmp_path, "reference")
    asyncio.run(run_in_process(validate(settings), reference))
    assert digest(run.model) == digest(reference.model)
    kept = [np.asarray(each[f"state/{client}"], np.float64) for each in federation.kept(run.path)]
    state = checkpoints.load(run.checkpoint).state(server_half(settings["algorithm"]["name"]).State)
    assert np.abs(kept).max() > 1e-3
    np.testing.assert_allclose(getattr(state, server), np.mean(kept, axis=0), rtol=0, atol=tolerance)
