"""The job on Flower's classic gRPC server: ``flwr.server.start_server`` and ``flwr.client.start_client``."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.client import NumPyClient, start_client  # type: ignore[import-not-found]
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays  # type: ignore[import-not-found]
from flwr.server import ServerConfig, start_server  # type: ignore[import-not-found]
from flwr.server.strategy import FedAvg  # type: ignore[import-not-found]

from benchmarks.peers.job import Job, Result, Stopwatch, constant, start, words


class TimedFedAvg(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, noting when its rounds end, and keeping the last model."""

    def __init__(self, job: Job, stopwatch: Stopwatch) -> None:
        self.parameters = ndarrays_to_parameters([start(job.floats)])
        self._stopwatch = stopwatch
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=job.clients,
            min_evaluate_clients=0,
            min_available_clients=job.clients,
            accept_failures=False,
            initial_parameters=self.parameters,
        )

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return the mean, as Flower computes it."""
        mean = super().aggregate_fit(server_round, results, failures)
        self.parameters = mean[0]
        self._stopwatch.round_ended()
        return mean


class AddingClient(NumPyClient):  # type: ignore[misc]
    """A client that adds its constant."""

    def __init__(self, client: int) -> None:
        self._constant = np.float32(constant(client))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Return the vector plus the constant, and that it counts as one sample."""
        return [parameters[0] + self._constant], 1, {}


def main() -> None:
    """Be the server, or a client."""
    given = words()
    address = f"127.0.0.1:{given.port}"
    if given.client is not None:
        start_client(server_address=address, client=AddingClient(given.client).to_client(), insecure=True)
        return
    stopwatch = Stopwatch()
    strategy = TimedFedAvg(given.job, stopwatch)
    start_server(server_address=address, config=ServerConfig(num_rounds=given.job.total), strategy=strategy)
    Result(stopwatch.ends, parameters_to_ndarrays(strategy.parameters)[0]).write(given.folder)


if __name__ == "__main__":
    main()
