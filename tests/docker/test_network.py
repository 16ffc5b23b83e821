"""Clients behind a relay: they reach the server through it alone, over TLS, and their model has the same bits."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from tests.docker.cluster import ROOT, Cluster, model_bytes

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]  # make test-all

CLIENTS = 4
SETTINGS = ROOT / "fenchel" / "experiments" / "fedavg-digits.yaml"
OVERLAYS = ("docker-compose.yml", "deploy/compose.links.yml")

Bring = Callable[..., Cluster]


def reaches(container: str, address: str) -> bool:
    """Whether a container can open a TCP connection to port 7443 of an address."""
    code = f"import socket; socket.create_connection(({address!r}, 7443), 3)"
    tried = subprocess.run(["docker", "exec", container, "python", "-c", code], capture_output=True, check=False)
    return tried.returncode == 0


async def test_a_relay_between_containers_delays_every_exchange_and_changes_no_bit_of_the_model(
    bring: Bring, tmp_path: Path
) -> None:
    cluster = bring(
        FENCHEL_SETTINGS=str(SETTINGS),
        FENCHEL_CLIENTS=str(CLIENTS),
        FENCHEL_LINK="hyfdca-257ms",
        FENCHEL_LINK_OPTIONS="--cut-at 4s --cut-for 1s",
        COMPOSE_FILE=os.pathsep.join(str(ROOT / name) for name in OVERLAYS),
    )
    cluster.up(CLIENTS)
    (relay,), (server,), client = (
        cluster.containers("relay"),
        cluster.containers("server"),
        cluster.containers("client")[0],
    )
    (inside,) = cluster.inspect(server)["NetworkSettings"]["Networks"].values()
    cluster.wait(lambda: reaches(relay, inside["IPAddress"]), "the server, by the relay")
    cluster.wait(lambda: reaches(client, "server"), "an answer of the relay, to the server's name")
    assert not reaches(client, inside["IPAddress"])
    assert set(cluster.finished().values()) == {0}
    folder = cluster.run_folder()
    seconds = pq.read_table(folder / "calls.parquet").column("total_s").to_pylist()
    assert min(seconds) >= 0.2575
    cluster.wait(lambda: cluster.inspect(relay)["State"]["Status"] == "exited", "the end of the relay")
    assert cluster.inspect(relay)["State"]["ExitCode"] == 0
    last = cluster.logs("relay").strip().splitlines()[-1]
    connections, cuts = re.search(r"connections 0 of (\d+)  cuts (\d+)", last).groups()  # type: ignore[union-attr]
    assert int(connections) >= 2 * CLIENTS
    assert int(cuts) == CLIENTS  # each client has a link of its own
    reference = RunFolder.create(tmp_path, "without-docker")
    await run_in_process(load(SETTINGS, [f"clients={CLIENTS}"]), reference)
    assert model_bytes(folder) == model_bytes(reference.path)
