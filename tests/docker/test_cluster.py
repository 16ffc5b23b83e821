"""Eight clients in containers: the same bits as in one process, through kills and a lost network."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.deploy.launch.names import client_names
from tests.docker.cluster import ROOT, Cluster, command, model_bytes

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

SCALED = 8  # clients of the default run
CLIENTS = 4  # of the runs that are disturbed
ROUNDS = 250
DEFAULT = ROOT / "fenchel" / "experiments" / "fedavg-digits.yaml"
LEDGER = "tests.cluster.ledger:Ledger"  # its clients keep state: one lost or repeated reply changes the model

Bring = Callable[..., Cluster]


async def without_docker(settings: Path, parent: Path, *overrides: str) -> bytes:
    folder = RunFolder.create(parent, "without-docker")
    await run_in_process(load(settings, overrides), folder)
    return model_bytes(folder.path)


@pytest.fixture
def ledger(bring: Bring, tmp_path: Path) -> tuple[Cluster, Path]:
    """A cluster whose clients keep state, and its settings."""
    settings = {
        "name": "ledger",
        "seed": 11,
        "rounds": ROUNDS,
        "clients": CLIENTS,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": LEDGER, "nap": 0.03},  # beside other tests, too, kills find the run going on
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 120.0},
        "evaluation": {"server": False, "clients": False},
    }
    path = tmp_path / "ledger.yaml"
    path.write_text(yaml.safe_dump(settings))
    brings = {"environment": {"PYTHONPATH": "/own"}, "volumes": [f"{ROOT / 'tests'}:/own/tests:ro"]}
    overlay = tmp_path / "overlay.yml"
    overlay.write_text(yaml.safe_dump({"services": {"server": brings, "client": brings}}))
    cluster = bring(
        FENCHEL_SETTINGS=str(path),
        FENCHEL_CLIENTS=str(CLIENTS),
        FENCHEL_CLIENT_OPTIONS=f"--allow {LEDGER}",
        COMPOSE_FILE=os.pathsep.join((str(ROOT / "docker-compose.yml"), str(overlay))),
    )
    return cluster, path


async def test_eight_scaled_clients_do_the_default_run_and_leave_the_model_of_one_process_on_the_host(
    bring: Bring, tmp_path: Path
) -> None:
    cluster = bring(FENCHEL_CLIENTS="auto")
    cluster.up(SCALED)
    codes = cluster.finished()
    assert len(codes) == SCALED + 2
    assert set(codes.values()) == {0}
    folder = cluster.run_folder()
    assert folder.stat().st_uid == os.getuid()
    for name in ("settings.yaml", "metrics.parquet", "calls.parquet", "report.html", "log.jsonl"):
        assert (folder / name).exists()
    assert json.loads((folder / "summary.json").read_text())["completed"] is True
    took_part = {line.split("| ")[1].split(":")[0] for line in cluster.logs("client").splitlines() if "working" in line}
    assert took_part == set(client_names(SCALED))
    assert model_bytes(folder) == await without_docker(DEFAULT, tmp_path, f"clients={SCALED}")


async def test_killed_containers_and_processes_go_on_where_they_were_and_not_a_bit_of_the_model_changes(
    ledger: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, settings = ledger
    cluster.up(CLIENTS)
    (server,) = cluster.containers("server")
    client, other, *_ = cluster.containers("client")
    cluster.wait_for_round(20)
    cluster.kill_process(client)
    cluster.wait(lambda: cluster.said(client, "killed by SIGKILL") != [], "the restart of a client")
    cluster.wait_for_round(cluster.rounds() + 20)
    command("docker", "kill", other, server)
    command("docker", "start", server, other)
    cluster.wait_for_round(cluster.rounds() + 20)
    cluster.kill_process(server)
    cluster.wait(lambda: "the process was killed by SIGKILL" in cluster.logs("server"), "the server's restart")
    assert cluster.rounds() < ROUNDS, "the run was over before all kills: give it more rounds"
    assert set(cluster.finished().values()) == {0}
    assert model_bytes(cluster.run_folder()) == await without_docker(settings, tmp_path, "algorithm.nap=0.0")


async def test_a_client_that_is_cut_off_the_network_for_a_while_comes_back_and_not_a_bit_of_the_model_changes(
    ledger: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, settings = ledger
    cluster.up(CLIENTS)
    client = cluster.containers("client")[0]
    cluster.wait_for_round(20)
    command("docker", "network", "disconnect", cluster.network(), client)
    await asyncio.sleep(8)
    reached = cluster.rounds()
    await asyncio.sleep(2)
    assert cluster.rounds() == reached < ROUNDS  # the others wait for it
    command("docker", "network", "connect", cluster.network(), client)
    assert set(cluster.finished().values()) == {0}
    assert model_bytes(cluster.run_folder()) == await without_docker(settings, tmp_path, "algorithm.nap=0.0")


async def test_a_cluster_that_is_stopped_goes_on_when_it_is_brought_up_again_and_not_a_bit_of_the_model_changes(
    ledger: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, settings = ledger
    cluster.up(CLIENTS)
    cluster.wait_for_round(20)
    cluster.do("stop")
    assert cluster.rounds() < ROUNDS
    assert [path.name[:8] for path in cluster.runs.iterdir()] == ["running-"]
    cluster.up(CLIENTS)
    assert set(cluster.finished().values()) == {0}
    assert model_bytes(cluster.run_folder()) == await without_docker(settings, tmp_path, "algorithm.nap=0.0")
