"""The job on Fenchel: an ordinary run of ``fedavg``, with the processes that ``fenchel up`` starts.

What a client adds is in its data: its samples have one feature, whose value is the client's constant. The
objective's gradient is minus the mean of that feature in every entry, so that one step of size 1 on the whole
shard adds the constant. Everything else is as it is by default: checks, metrics, checkpoints, exactly-once.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.job import Job, Result, constant, start, words
from common.arrays import Indices, Vector
from common.data.shard import Shard
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.run_folder import RunFolder
from common.settings.run import RunSettings, validate
from deploy.local import LocalLauncher
from report.run import Run
from server.coordinator import Observer
from server.rounds import Row

_SAMPLES = 4  # of each client


class Adding(Objective):
    """An objective of which a gradient step of size 1 adds the mean of the samples' only feature."""

    def __init__(self, *, shard: Shard, l2: float, dtype: Any, dimension: int) -> None:
        super().__init__(dimension=dimension, samples=shard.samples, dtype=dtype)
        self._feature = np.asarray(shard.features, np.float64).reshape(-1)

    def initial(self, seed: int) -> Vector:
        """Return the vector that the job starts with, shape (dimension,)."""
        return start(self.dimension)

    def loss(self, w: Vector) -> float:
        """Return minus the mean feature times the sum of w."""
        return float(-self._feature.mean() * w.sum())

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return minus the mean feature of the rows, in each of (dimension,) entries."""
        return np.full(self.dimension, -self._feature[rows].mean(), self.dtype)

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return nothing learnt; the run does not ask."""
        return Metrics(0.0, 0, self.samples)


def settings(job: Job, data: Path) -> RunSettings:
    """Return the settings of the run: defaults wherever the job does not ask for more."""
    return validate(
        {
            "name": "peers",
            "rounds": job.total,
            "clients": job.clients,
            "data": {
                "file": str(data),
                "label": "label",
                "test_fraction": 0.0,
                "partition": {"kind": "classes", "per_client": 1},
            },
            "objective": {
                "kind": "own",
                "name": "benchmarks.peers.fenchel_fedavg:Adding",
                "dtype": "float32",
                "parameters": {"dimension": job.floats},
            },
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 1.0},
            "evaluation": {"server": False, "clients": False},
        }
    )


def write_data(job: Job, path: Path) -> None:
    """Write the clients' samples as a CSV file: all of one client are of one class."""
    rows = [f"{constant(client)},{client}" for client in range(job.clients) for _ in range(_SAMPLES)]
    path.write_text("\n".join(["constant,label", *rows]) + "\n")


def main() -> None:
    """Do the run and write down when its rounds ended and what the model is."""
    given = words()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        data = Path(temporary) / "constants.csv"
        write_data(given.job, data)
        folder = RunFolder.create(Path(temporary), "peers")
        ends: list[float] = []

        def ended(row: Row) -> None:
            ends.append(row["unix"])

        launcher = LocalLauncher(
            settings(given.job, data),
            folder,
            given.job.clients,
            processes=given.job.clients,
            secure=given.tls,
            observer=Observer(row=ended),
        )
        asyncio.run(launcher.run())
        Result(ends, Run(folder.path).model).write(given.folder)


if __name__ == "__main__":
    main()
