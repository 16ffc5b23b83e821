"""``fenchel up --on ray``: three nodes, one of which is lost, and what users get wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from fenchel import up
from fenchel.common.errors import SettingsError, UnreachableError
from tests.cluster import ray_nodes
from tests.cluster.ray_nodes import Nodes
from tests.cluster.up import Up, local_digest, quickstart, wait_calmly
from tests.messages import raises

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,  # make test-all
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (fenchel[ray])"),
]

CLIENT, HANDOVER = "fenchel.deploy.cli.remote client", "launchers.handover"
ROUNDS = 20
STATELESS = {
    "name": "stateless",
    "seed": 3,
    "rounds": 400,
    "clients": 2,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
    "objective": {"kind": "softmax", "l2": 1e-3},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 0.5},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes.nodes() as started:
        yield started


def clients_of(part: str) -> list[psutil.Process]:
    """Return all client processes on nodes that have this in their command lines."""
    lines = {each: " ".join(line(each)) for each in psutil.process_iter()}
    return [each for each, said in lines.items() if CLIENT in said and HANDOVER not in said and part in said]


def line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def begun(folder: Path, nodes: Nodes, *words: str) -> Up:
    """Begin a run, and wait until it is in the middle."""
    (folder / "engine.yaml").write_text(yaml.safe_dump(nodes.engine))
    process = Up.start(folder, *words, "--on", "ray", "--engine", "engine.yaml")
    process.wait_for_round(3)
    return process


def test_a_lost_node_costs_no_bit_and_nothing_is_left(nodes: Nodes, tmp_path: Path) -> None:
    # One process takes a whole node, so that one of the two is not on the head.
    process = begun(tmp_path, nodes, *quickstart(ROUNDS), "--processes", "2", "--cpus", "2")
    running = clients_of(str(tmp_path))
    assert len(running) == 2
    for each in running:
        assert "PRIVATE KEY" not in "".join((*line(each), *each.environ().values()))
    nodes.lose({each.pid for each in running})
    run = process.check_end(local_digest(ROUNDS))
    logs = [log.read_text() for log in (run / "clients").glob("*.log")]
    assert len(logs) == 2
    assert sum(log.count("working for run") for log in logs) > 4, "what killed clients said has come here as well"
    wait_calmly(lambda: not clients_of(str(tmp_path)), "the end of all clients")


def test_clients_without_state_need_no_shared_storage_and_end_with_their_commands_also_if_they_hang(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process but those of the command sees its working folder at this path."""
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(STATELESS))
    process = begun(tmp_path, nodes, str(file), "--runs", "/proc/self/cwd/runs", "--gpus", "0.5")
    (run,) = (tmp_path / "runs").iterdir()
    temporary = Path(f"/tmp/fenchel-{run.name}")
    assert temporary.is_dir()
    hanging = clients_of(str(temporary))
    assert len(hanging) == 2
    assert {each.environ()["CUDA_VISIBLE_DEVICES"] for each in hanging} == {"0"}  # a share of their node's only one
    for each in hanging:
        each.suspend()
    for each in psutil.Process(process.process.pid).children():
        if HANDOVER in " ".join(line(each)):
            each.kill()
    wait_calmly(lambda: not any(each.is_running() for each in hanging), "the end of clients that hang")
    wait_calmly(lambda: len(clients_of(str(temporary))) == 2, "others in their place")
    process.kill()
    wait_calmly(lambda: not clients_of(str(temporary)), "the end of all clients")
    wait_calmly(lambda: not temporary.exists(), "the end of their folder")
    wait_calmly(lambda: not list(own.glob("fenchel-*")), "the end of the driver's folder")


def test_clients_with_state_need_shared_storage(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(SettingsError, key="--runs"):
        up("quickstart", on="ray", engine=nodes.engine, runs="/proc/self/cwd/runs")


WRONG: dict[str, tuple[dict[str, Any], type[Exception], dict[str, str]]] = {
    "an address where no cluster is": ({"address": "127.0.0.1:1"}, UnreachableError, {"key": "address"}),
    "more processors than there are": ({"cpus": 2.5}, SettingsError, {"key": "--on ray"}),
    "more client processes than there is room for": ({"cpus": 2}, SettingsError, {"key": "--on ray"}),
    "GPUs that are not there": ({"gpus": 2}, SettingsError, {"key": "--on ray"}),
    "an address of this machine that nodes do not reach": ({"dial": "nowhere.invalid"}, UnreachableError, {}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_an_error_before_anything_is_started(case: str, nodes: Nodes, tmp_path: Path) -> None:
    more, kind, attributes = WRONG[case]
    with raises(kind, **attributes):
        up("quickstart", on="ray", engine=nodes.engine | more, runs=tmp_path)
    assert not clients_of(str(tmp_path))


def test_a_node_without_fenchel_is_an_error(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fenchel'] = None\n")
    nodes.order(str(tmp_path))
    try:
        with raises(SettingsError, source=nodes.address.partition(":")[0]):
            up("quickstart", on="ray", engine=nodes.engine, runs=tmp_path / "runs")
    finally:
        nodes.order(str(nodes.raylets[-1]))
