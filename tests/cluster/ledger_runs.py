"""Runs of the ledger, whose clients keep state: one lost or repeated reply changes the model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from tests.cluster.federation import digest

LEDGER = "tests.cluster.ledger:Ledger"


def settings(rounds: int, nap: float) -> dict[str, Any]:
    """Return the settings of a run with three clients, two of them in each round."""
    return {
        "name": "ledger",
        "seed": 11,
        "rounds": rounds,
        "clients": 3,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": LEDGER, "nap": nap},
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 120.0},
        "evaluation": {"server": False, "clients": False},
    }


def undisturbed(folder: Path, rounds: int) -> str:
    """Return the digest of the model of a run in which nothing goes wrong."""
    run = RunFolder.create(folder, "undisturbed")
    asyncio.run(run_in_process(validate(settings(rounds, nap=0.0)), run))
    return digest(run.model)
