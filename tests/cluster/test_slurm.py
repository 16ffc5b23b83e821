"""``fenchel up --on slurm``: on three nodes, in an allocation and from outside, with kills and a lost node."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fenchel import up
from fenchel.common.errors import SettingsError
from tests.cluster.federation import digest, wait_until
from tests.cluster.slurm_cluster import Cluster, NoSlurmError, slurm
from tests.messages import raises

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]  # make test-all

ROUNDS = 40
OVERRIDES = (f"rounds={ROUNDS}", "algorithm.encryption.key_bits=2048")
SETTINGS = ("quickstart", *(word for override in OVERRIDES for word in ("--set", override)))

APART = ("unshare", "--mount", "sh", "-c", 'mkdir runs && mount -t tmpfs tmpfs runs && exec "$@"', "sh")
"""Command that gives another one a folder for runs which no node sees."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with slurm(tmp_path_factory.mktemp("slurm")) as found:
            yield found
    except NoSlurmError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the encrypted quickstart's model from this machine alone."""
    folder = tmp_path_factory.mktemp("local")
    up("quickstart", overrides=OVERRIDES, runs=folder)
    (run,) = folder.iterdir()
    return digest(run / "model.npz")


def started(cluster: Cluster, folder: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start ``fenchel up --on slurm``.

    before: command that gives it an allocation.
    """
    command = [*before, sys.executable, "-P", "-m", "fenchel", "up", *words, "--on", "slurm"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=cluster.environment())


def wait_for_round(number: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    said = (folder / "log").read_text
    wait_until(lambda: f"round {number} " in said() or process.poll() is not None, f"round {number}")
    assert process.poll() is None, said()


def check_end(cluster: Cluster, folder: Path, process: subprocess.Popen[bytes], expected: str) -> None:
    assert process.wait(200) == 0, (folder / "log").read_text()
    (model,) = folder.rglob("model.npz")
    assert digest(model) == expected
    wait_until(lambda: not cluster.tasks(), "the end of all client processes")
    assert not cluster.run("squeue", "-h"), "no job is left"


def test_a_killed_client_and_a_killed_step_cost_no_bit_and_secrets_are_nowhere(
    cluster: Cluster, expected: str, tmp_path: Path
) -> None:
    process = started(cluster, tmp_path, *SETTINGS, before=("salloc", "--quiet", "--nodes=3", "--ntasks=5"))
    wait_for_round(3, tmp_path, process)
    tasks = cluster.tasks()
    assert len(tasks) == 4
    assert {task.environ()["SLURMD_NODENAME"] for task in tasks} == {"n1", "n2", "n3"}
    for task in tasks:
        assert "--bundle -" in " ".join(task.cmdline())
        assert "PRIVATE KEY" not in " ".join([*task.cmdline(), *task.environ().values()])
    tasks[0].kill()
    (server,) = (each for each in psutil.Process(process.pid).children(recursive=True) if "up" in each.cmdline())
    steps = [each for each in server.children() if each.name() == "srun"]
    steps[-1].kill()
    check_end(cluster, tmp_path, process, expected)


def test_a_lost_node_costs_no_bit(cluster: Cluster, expected: str, tmp_path: Path) -> None:
    before = ("salloc", "--quiet", "--no-kill", "--nodes=3", "--ntasks=5")
    process = started(cluster, tmp_path, *SETTINGS, before=before)
    wait_for_round(3, tmp_path, process)
    assert cluster.tasks("n3")
    cluster.lose("n3")
    try:
        check_end(cluster, tmp_path, process, expected)
    finally:
        cluster.start_node("n3")
        wait_until(cluster.idle, "three idle nodes")


def test_a_job_that_slurm_starts_again_goes_on(cluster: Cluster, expected: str, tmp_path: Path) -> None:
    process = started(cluster, tmp_path, *SETTINGS)
    wait_for_round(3, tmp_path, process)
    job = cluster.run("squeue", "-h", "-o", "%A").strip()
    cluster.run("scontrol", "requeue", job)
    wait_until(lambda: cluster.run("squeue", "-h", "-o", "%T").strip() == "PENDING", "the job in the queue")
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm itself waits for two minutes
    check_end(cluster, tmp_path, process, expected)
    assert "the run is saved" in (tmp_path / "log").read_text()


def test_an_interrupted_command_cancels_its_job_and_the_run_goes_on_in_another(
    cluster: Cluster, expected: str, tmp_path: Path
) -> None:
    process = started(cluster, tmp_path, *SETTINGS)
    wait_for_round(3, tmp_path, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, (tmp_path / "log").read_text()
    wait_until(lambda: not cluster.tasks() and not cluster.run("squeue", "-h"), "the end of the job")
    (run,) = (tmp_path / "runs").glob("job-*/*")
    assert f"--resume {run}" in (tmp_path / "log").read_text()
    check_end(cluster, tmp_path, started(cluster, tmp_path, "--resume", str(run)), expected)


def test_a_job_prints_its_summary_as_json(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "fenchel", "up", *SETTINGS, "--set", "rounds=2", "--on", "slurm", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=cluster.environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["rounds"] == 2


def test_clients_without_journals_need_no_shared_storage(cluster: Cluster, tmp_path: Path) -> None:
    before = ("salloc", "--quiet", "--ntasks=4", *APART)
    settings = ("fedavg-digits", "--set", "rounds=3", "--clients", "4")
    process = started(cluster, tmp_path, *settings, before=before)
    assert process.wait(60) == 0, (tmp_path / "log").read_text()
    found = re.search(r"run folder +runs/(\S+)", (tmp_path / "log").read_text())
    assert found is not None
    assert not Path("/tmp", f"fenchel-{found[1]}").exists(), "each node removes its folder"


WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "no such partition": ((), ("--engine", "engine.yaml"), "partition"),
    "an allocation that is too small": (("salloc", "--quiet", "--ntasks=2"), (), "2 processors"),
    "more processors than a node has": ((), ("--cpus", "100"), "PartitionConfig"),
    "journals that nodes do not share": (("salloc", "--quiet", "--ntasks=4", *APART), (), "--runs"),
    "another Python": (("salloc", "--quiet", "--ntasks=4"), ("--engine", "python.yaml"), "python"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_an_error_before_anything_is_started(case: str, cluster: Cluster, tmp_path: Path) -> None:
    before, words, named = WRONG[case]
    (tmp_path / "engine.yaml").write_text("partition: nowhere\n")
    (tmp_path / "python.yaml").write_text("python: /nowhere/python\n")
    process = started(cluster, tmp_path, "quickstart", *words, before=before)
    assert process.wait(60) == SettingsError.exit_code
    assert named in (tmp_path / "log").read_text()
    assert not cluster.tasks()
    assert not cluster.run("squeue", "-h")


def test_python_needs_an_allocation(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    settings: dict[str, Any] = {"time": "10"}
    with raises(SettingsError, key="--on slurm"):
        up("quickstart", on="slurm", engine=settings, runs=tmp_path)
