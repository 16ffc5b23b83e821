"""The job on Fenchel, as a user writes it: an algorithm of one's own, which is federated averaging.

What a client adds is in its data: its samples have one feature, whose value is the client's constant. The
processes are those that ``fenchel up`` starts. Everything else is as it is by default: checks, metrics,
checkpoints, exactly-once.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import as_served  # noqa: F401 - before gRPC is imported
from benchmarks.peers.job import Job, Result, constant, start, words
from benchmarks.rows import Rows
from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.deployment import Deployment
from fenchel.report.run import Run

_SAMPLES = 4  # of each client


class Adding(Algorithm):
    """The server half: everybody trains from the global model, and the results are averaged by numbers of samples."""

    async def round(self, t: int) -> None:
        """Take the mean of what the clients make of the model."""
        trained = await self.sample().reduce(
            "train", model=self.model, returns={"model": self.model, "samples": int}, weight="samples"
        )
        self.model = trained.mean("model")


class AddingClient(ClientAlgorithm):
    """The client half: adds the client's constant."""

    def __init__(self, place: ClientContext) -> None:
        super().__init__(place)
        self._constant = np.float32(place.shard.features.mean())

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Return the model plus the constant, shape (d,), and the number of samples."""
        return {"model": model + self._constant, "samples": self.shard.samples}


class Starting(Objective):
    """An objective that knows where the job begins, and nothing else: nobody minimises it."""

    def __init__(self, *, shard: Shard, l2: float, dtype: Any, dimension: int) -> None:
        super().__init__(dimension=dimension, samples=shard.samples, dtype=dtype)

    def initial(self, seed: int) -> Vector:
        """Return the vector that the job starts with, shape (dimension,)."""
        return start(self.dimension)

    def loss(self, w: Vector) -> float:
        """Return 0; the run does not ask."""
        return 0.0

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return zeros, shape (dimension,); the run does not ask."""
        return np.zeros(self.dimension, self.dtype)

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
                "name": "benchmarks.peers.fenchel_fedavg:Starting",
                "dtype": "float32",
                "parameters": {"dimension": job.floats},
            },
            "algorithm": {"name": "benchmarks.peers.fenchel_fedavg:Adding"},
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
        rows = Rows()
        deployment = Deployment(
            settings(given.job, data),
            folder,
            given.job.clients,
            processes=given.job.clients,
            secure=given.tls,
            observer=rows,
        )
        asyncio.run(deployment.run())
        Result(rows.ends, Run(folder.path).model).write(given.folder)


if __name__ == "__main__":
    main()
