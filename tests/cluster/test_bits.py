"""The same settings give the same bits, wherever the clients are."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fenchel
from fenchel.common.settings.run import load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest

pytestmark = pytest.mark.cluster

FEDAVG = Path("fenchel/experiments/fedavg-digits.yaml")


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "in-process")
    asyncio.run(run_in_process(load(FEDAVG), folder))
    return folder


def test_one_command_gives_the_bits_of_the_in_process_fleet(in_process: RunFolder, tmp_path: Path) -> None:
    words = ["up", str(FEDAVG), "--runs", str(tmp_path), "--processes", "2", "--json"]
    done = subprocess.run([sys.executable, "-m", "fenchel", *words], capture_output=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["completed"]
    assert digest(Path(summary["folder"]) / "model.npz") == digest(in_process.model)
    assert Path(summary["folder"], "report.html").exists()


def test_separate_server_and_clients_over_tls_give_the_bits_of_the_in_process_fleet(
    in_process: RunFolder, federate: MakeFederation
) -> None:
    federation = federate(load(FEDAVG).model_dump(mode="json"))
    federation.start()
    run = fenchel.Run(federation.finish())
    assert digest(run.path / "model.npz") == digest(in_process.model)
    assert set(run.calls["outcome"]) == {"counted"}
    assert len(run.calls) == 20 * 4 * 2, "each client is asked once to train and once to evaluate, every round"


@pytest.mark.slow
def test_many_clients_share_a_process_and_each_has_its_own_connection(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rounds": 3,
        "clients": 40,
        "data": {"name": "digits", "partition": {"kind": "iid"}},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": "fedavg"},
    }
    run = fenchel.up(settings, processes=2, runs=tmp_path)
    assert run.completed
    assert run.calls["client"].nunique() == 40
    folder = RunFolder.create(tmp_path, "in-process")
    asyncio.run(run_in_process(validate(settings), folder))
    assert digest(run.path / "model.npz") == digest(folder.model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", [{"kind": "softmax", "dtype": "float32"}, {"kind": "mlp"}], ids=["float32", "neural network"]
)
def test_other_models_give_the_same_bits_across_processes(objective: dict[str, Any], tmp_path: Path) -> None:
    if objective["kind"] == "mlp":
        pytest.importorskip("torch")
    settings: dict[str, Any] = {
        "rounds": 4,
        "clients": 3,
        "data": {"name": "digits", "scale": "unit-interval"},
        "objective": objective,
        "algorithm": {"name": "fedavg"},
    }
    across = fenchel.up(settings, runs=tmp_path, processes=2)  # three would import torch once more
    inside = fenchel.up(settings, runs=tmp_path, in_process=True)
    assert digest(across.path / "model.npz") == digest(inside.path / "model.npz")
