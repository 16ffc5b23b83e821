"""The server's part of the app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context  # type: ignore[import-not-found]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]

from benchmarks.peers.job import Job, Result, Stopwatch, start

app = ServerApp()


class TimedFedAvg(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, noting when its rounds end."""

    def __init__(self, clients: int, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_evaluate_nodes=0,
            min_available_nodes=clients,
        )

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Return the mean, as Flower computes it."""
        mean = super().aggregate_train(server_round, replies)
        self._stopwatch.round_ended()
        return mean


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Do the job and write the result."""
    job = Job.from_json(str(context.run_config["job"]))
    stopwatch = Stopwatch()
    done = TimedFedAvg(job.clients, stopwatch).start(
        grid=grid, initial_arrays=ArrayRecord([start(job.floats)]), num_rounds=job.total
    )
    (model,) = done.arrays.to_numpy_ndarrays()
    Result(stopwatch.ends, model).write(Path(str(context.run_config["folder"])))
