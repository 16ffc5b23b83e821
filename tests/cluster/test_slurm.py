"""``fenchel up --on slurm``: on three nodes, in an allocation and from outside, with kills and a lost node."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fenchel import up
from fenchel.common.errors import SettingsError
from tests.cluster.federation import wait_until
from tests.cluster.slurm_cluster import Cluster, NoSlurmError, slurm
from tests.cluster.up import Up, local_digest, quickstart, wait_calmly
from tests.messages import raises

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]  # make test-all

ROUNDS = 30
SETTINGS = quickstart(ROUNDS)
FEW = (*SETTINGS, "--processes", "2")
SMALL = ("fedavg-digits", "--clients", "2")

APART = ("unshare", "--mount", "sh", "-c", 'mkdir runs && mount -t tmpfs tmpfs runs && exec "$@"', "sh")
"""Command that gives another one a folder for runs which no node sees."""

GOING_ON = "--states=PENDING,RUNNING,SUSPENDED"
"""Option of squeue for jobs that go on.

A job that is completing has ended, but for the word of a node, which comes late, or never if the node is lost.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with slurm(tmp_path_factory.mktemp("slurm")) as found:
            yield found
    except NoSlurmError as error:
        pytest.skip(str(error))


def started(cluster: Cluster, folder: Path, *words: str, before: tuple[str, ...] = ()) -> Up:
    """Start the command, in an allocation that ``before`` gives it or without one."""
    return Up.start(folder, *words, "--on", "slurm", before=before, environment=cluster.environment())


def check_end(cluster: Cluster, process: Up, expected: str) -> None:
    process.check_end(expected)
    wait_calmly(lambda: not cluster.tasks(), "the end of all client processes")
    assert not cluster.run("squeue", "-h", GOING_ON), "no job is left"


def test_a_killed_client_a_killed_step_and_a_lost_node_cost_no_bit_and_secrets_are_nowhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = ("salloc", "--quiet", "--no-kill", "--nodes=3", "--ntasks=5")
    process = started(cluster, tmp_path, *SETTINGS, before=before)
    process.wait_for_round(3)
    tasks = cluster.tasks()
    assert len(tasks) == 4
    assert {task.environ()["SLURMD_NODENAME"] for task in tasks} == {"n1", "n2", "n3"}
    for task in tasks:
        assert "--bundle -" in " ".join(task.cmdline())
        assert "PRIVATE KEY" not in " ".join([*task.cmdline(), *task.environ().values()])
    tasks[0].kill()
    (server,) = (
        each for each in psutil.Process(process.process.pid).children(recursive=True) if "up" in each.cmdline()
    )
    steps = [each for each in server.children() if each.name() == "srun"]
    steps[-1].kill()
    process.wait_for_round(ROUNDS // 3)  # rounds wait for all clients, so these are back
    lost = max(task.environ()["SLURMD_NODENAME"] for task in cluster.tasks())  # not all started where they were
    cluster.lose(lost)
    try:
        check_end(cluster, process, local_digest(ROUNDS))
    finally:
        cluster.start_node(lost)
        wait_calmly(cluster.idle, "three idle nodes")


def test_a_job_that_slurm_starts_again_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    process = started(cluster, tmp_path, *FEW)
    process.wait_for_round(3)
    job = cluster.run("squeue", "-h", "-o", "%A").strip()
    cluster.run("scontrol", "requeue", job)
    wait_calmly(lambda: cluster.run("squeue", "-h", "-o", "%T").strip() == "PENDING", "the job in the queue")
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm itself waits for two minutes
    check_end(cluster, process, local_digest(ROUNDS))
    assert "the run is saved" in process.said()


def test_an_interrupted_command_cancels_its_job_and_the_run_goes_on_in_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    process = started(cluster, tmp_path, *FEW)
    process.wait_for_round(3)
    process.process.send_signal(signal.SIGINT)
    process.check_exit_code(130)
    wait_calmly(lambda: not cluster.tasks() and not cluster.run("squeue", "-h"), "the end of the job")
    (run,) = (tmp_path / "runs").glob("job-*/*")
    assert f"--resume {run}" in process.said()
    again = started(cluster, tmp_path, "--resume", str(run), "--processes", "2", "--json")
    check_end(cluster, again, local_digest(ROUNDS))
    assert f'"folder": "{run}"' in again.said()


def test_a_job_waits_in_a_full_queue_says_why_and_prints_its_summary_as_json(cluster: Cluster, tmp_path: Path) -> None:
    """Its log, whose folder Slurm could misread, comes as it is, with what looks like markup."""
    words = (*SMALL, "--set", "rounds=2", "--runs", "run folders/[/100%j]", "--json")
    taken = cluster.run("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    try:
        process = started(cluster, tmp_path, *words, before=("sh", "-c", 'exec "$@" >output', "sh"))
        wait_until(lambda: "waits: Resources" in process.said() or process.process.poll() is not None, "the queue")
    finally:
        cluster.run("scancel", taken.strip())
    process.check_exit_code(0)
    (log,) = (tmp_path / "run folders/[/100%j]").glob("job-*.log")
    passed = log.read_text()
    assert "[/100%j]" in passed
    assert " ".join(passed.split()) in " ".join(process.said().split())
    assert json.loads((tmp_path / "output").read_text())["rounds"] == 2


def test_a_killed_server_is_an_error_of_the_command(cluster: Cluster, tmp_path: Path) -> None:
    process = started(cluster, tmp_path, *SMALL, "--set", "rounds=1000")
    process.wait_for_round(3)
    job = cluster.run("squeue", "-h", "-o", "%A").strip()
    cluster.run("scancel", "--batch", "--signal=KILL", job)
    process.check_exit_code(128 + signal.SIGKILL)
    wait_calmly(lambda: not cluster.tasks(), "the end of all client processes")


def test_clients_without_journals_need_no_shared_storage(cluster: Cluster, tmp_path: Path) -> None:
    before = ("salloc", "--quiet", "--ntasks=2", *APART)
    process = started(cluster, tmp_path, *SMALL, "--set", "rounds=300", before=before)
    process.wait_for_round(3)
    (run,) = {each.cmdline()[each.cmdline().index("--state") + 1] for each in cluster.tasks()}
    assert run.startswith("/tmp/fenchel-")
    assert Path(run).is_dir()
    process.check_exit_code(0)
    assert not Path(run).exists(), "each node removes its folder"


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
    process.check_exit_code(SettingsError.exit_code)
    assert named in process.said()
    assert not cluster.tasks()
    assert not cluster.run("squeue", "-h", GOING_ON)


def test_python_needs_an_allocation(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    settings: dict[str, Any] = {"time": "10"}
    with raises(SettingsError, key="--on slurm"):
        up("quickstart", on="slurm", engine=settings, runs=tmp_path)
