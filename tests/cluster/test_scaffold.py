"""SCAFFOLD over gRPC: a client is killed, and the server's c is still the mean of what the clients hold."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import store
from common.run_folder import RunFolder
from common.settings.run import validate
from deploy.inprocess import run_in_process
from server import checkpoint as checkpoints
from server.algorithms.scaffold import Scaffold
from tests.cluster.federation import Federation, digest, wait_until

pytestmark = pytest.mark.cluster


def settings(rounds: int) -> dict[str, Any]:
    return {
        "name": "scaffold",
        "seed": 11,
        "rounds": rounds,
        "clients": 3,
        "data": {
            "name": "digits",
            "scale": "unit-interval",
            "partition": {"kind": "dirichlet", "alpha": 0.3},
        },
        "objective": {"kind": "softmax", "l2": 0.01},
        "algorithm": {"name": "scaffold", "local_epochs": 2, "batch_size": 8, "step_size": 0.02},
        "participation": {"sampler": {"kind": "fixed", "size": 2}},
        "evaluation": {"server": False, "clients": False},
    }


def reached(federation: Federation, t: int) -> bool:
    return f"round {t} " in federation.says("server")


@pytest.mark.timeout(300)
def test_a_killed_client_changes_no_bit_and_no_control_variate_is_lost(tmp_path: Path) -> None:
    rounds = 80
    federation = Federation(tmp_path, settings(rounds))
    try:
        federation.start()
        for moment, name in zip((5, 20, 40), federation.names, strict=True):
            wait_until(partial(reached, federation, moment), f"round {moment}")
            federation.kill(name)
            federation.restart(name)
        run = federation.finish()
    finally:
        federation.end()
    reference = RunFolder.create(tmp_path, "reference")
    asyncio.run(run_in_process(validate(settings(rounds)), reference))
    assert digest(run / "model.npz") == digest(reference.model)
    end = checkpoints.load(RunFolder(run).checkpoint)
    controls = []
    for name, member in end.members.items():
        (file,) = (tmp_path / "state" / name).rglob(f"{member['base']:020d}.state")
        controls.append(np.asarray(store.read(file)["state/control"]))
    control = end.state(Scaffold.State).control
    assert np.abs(controls).max() > 1e-3
    np.testing.assert_allclose(control, np.mean(controls, axis=0), rtol=0, atol=1e-14)
