"""Runs the echo through Fenchel itself, exactly as ``fenchel up`` does."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import as_served  # noqa: F401 - before gRPC is imported
from benchmarks.rows import Rows
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage import tables
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.deployment import Deployment


def settings(clients: int, floats: int, rounds: int, *, reduce: bool = False) -> RunSettings:
    """Return the settings of an echo run: defaults wherever the measurement does not ask for more."""
    return validate(
        {
            "name": "echo",
            "rounds": rounds,
            "clients": clients,
            "data": {"name": "digits"},
            "objective": {
                "kind": "own",
                "name": "benchmarks.echo:Vacuum",
                "dtype": "float32",
                "parameters": {"dimension": floats},
            },
            "algorithm": {"name": "benchmarks.echo:Echo", "reduce": reduce},
            "evaluation": {"server": False, "clients": False},
        }
    )


@dataclass(frozen=True)
class Measured:
    """What an echo run took."""

    seconds: list[float]  # of each round but the first, from its end to the end of the one before: with all bookkeeping
    counted: int  # replies of all rounds


def measure(clients: int, processes: int, floats: int, rounds: int, *, secure: bool, reduce: bool = False) -> Measured:
    """Run the echo and return what it took."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary), "echo")
        rows = Rows()
        deployment = Deployment(
            settings(clients, floats, rounds + 1, reduce=reduce),
            folder,
            clients,
            processes=processes,
            secure=secure,
            observer=rows,
        )
        asyncio.run(deployment.run())
        metrics = tables.read(folder.metrics)
        return Measured(list(np.diff(rows.ends)), int(sum(metrics["counted"].to_pylist())))
