"""The job on APPFL's gRPC server, with its synchronous scheduler and its FedAvg."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from appfl.agent import ServerAgent  # type: ignore[import-not-found]
from appfl.comm.grpc import GRPCClientCommunicator, GRPCServerCommunicator, serve  # type: ignore[import-not-found]
from appfl.config import ServerAgentConfig  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]

from benchmarks.peers.job import Job, Result, Stopwatch, constant, words


def configuration(job: Job, folder: Path) -> ServerAgentConfig:
    """Return APPFL's settings of the server."""
    swift = {"optimize_memory": False}  # collects no garbage between steps, which is slow
    return ServerAgentConfig(
        client_configs=OmegaConf.create(
            {
                "train_configs": {},
                "model_configs": {
                    "model_path": str(Path(__file__).with_name("appfl_vector.py")),
                    "model_name": "Vector",
                    "model_kwargs": {"floats": job.floats},
                },
            }
        ),
        server_configs=OmegaConf.create(
            {
                "num_clients": job.clients,
                "num_global_epochs": job.total,
                "scheduler": "SyncScheduler",
                "scheduler_kwargs": {"num_clients": job.clients, **swift},
                "aggregator": "FedAvgAggregator",
                "aggregator_kwargs": {"client_weights_mode": "equal", **swift},
                "device": "cpu",
                "logging_output_dirname": str(folder / "appfl"),
                **swift,
            }
        ),
    )


def be_server(job: Job, folder: Path, address: str) -> None:
    """Serve until all rounds are done."""
    agent = ServerAgent(configuration(job, folder))
    stopwatch = Stopwatch()
    average = agent.aggregator.aggregate
    averages: list[Any] = []
    finished = threading.Event()

    def timed(*models: Any, **more: Any) -> Any:
        mean = average(*models, **more)
        stopwatch.round_ended()
        averages[:] = [mean]
        if len(stopwatch.ends) == job.total:
            finished.set()
        return mean

    agent.aggregator.aggregate = timed
    communicator = GRPCServerCommunicator(agent, logger=agent.logger, optimize_memory=False)
    served = threading.Thread(target=serve, args=(communicator,), kwargs={"server_uri": address}, daemon=True)
    served.start()
    finished.wait()
    Result(stopwatch.ends, averages[0]["vector"].numpy()).write(folder)
    served.join()


def be_client(client: int, address: str) -> None:
    """Take part until the server says that it is done."""
    communicator = GRPCClientCommunicator(f"client-{client}", server_uri=address, optimize_memory=False)
    communicator.get_configuration()
    model = communicator.get_global_model(init_model=True)
    added = constant(client)
    status = "RUNNING"
    while status == "RUNNING":
        model, answer = communicator.update_global_model({"vector": model["vector"] + added})
        status = answer["status"]
    communicator.invoke_custom_action(action="close_connection")


def main() -> None:
    """Be the server, or a client."""
    given = words()
    address = f"127.0.0.1:{given.port}"
    if given.client is None:
        be_server(given.job, given.folder, address)
    else:
        be_client(given.client, address)


if __name__ == "__main__":
    main()
