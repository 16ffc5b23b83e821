"""A Slurm cluster of three nodes on this machine: an authority, a controller, and a daemon for each node."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from fenchel.deploy.launch.launchers.piped import REMOTE
from tests.cluster.federation import free_port
from tests.cluster.up import wait_calmly

COMMANDS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2", "n3")
PROCESSORS = 8  # of a node, whatever this machine has
LOST = 5  # seconds after which a node that is silent counts as lost

CONFIGURATION = """
ClusterName=tests
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=15
SlurmdTimeout={lost}
InactiveLimit=0
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
"""
NODE = (
    "NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} "
    "ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN\n"
)


class NoSlurmError(Exception):
    """Slurm cannot be had here."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster, which commands find by the variable ``SLURM_CONF``."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a command that uses the cluster."""
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command of Slurm; return what it prints."""
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
        return done.stdout

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self.run("slurmd", "-N", node)

    def lose(self, node: str) -> None:
        """End all processes of a node at once."""
        psutil.Process(int((self.folder / f"slurmd-{node}.pid").read_text())).kill()
        for process in self.tasks(node):
            manager = process.parent()
            for each in (process, manager) if manager is not None and manager.name() == "slurmstepd" else (process,):
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    def tasks(self, node: str | None = None) -> list[psutil.Process]:
        """Return processes of client processes, on one node or on all."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has just ended
                environment = process.environ()
                is_client = process.name() != "srun" and REMOTE in process.cmdline()
                is_here = node in (None, environment.get("SLURMD_NODENAME"))
                if is_client and is_here and environment.get("SLURM_CONF") == str(self.folder / "slurm.conf"):
                    found.append(process)
        return found

    def idle(self) -> bool:
        """Return whether all nodes wait for work."""
        return len(self.run("sinfo", "-h", "-N", "-t", "idle", check=False).splitlines()) == len(NODES)


@contextmanager
def slurm(folder: Path) -> Iterator[Cluster]:
    """Make a cluster, and remove it at the end."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if os.geteuid() != 0 or absent:
        raise NoSlurmError(f"a cluster needs root and slurm-wlm ({', '.join(absent) or 'not root'})")
    folder.chmod(0o755)
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    configuration = CONFIGURATION.format(folder=folder, user="root", port=free_port(), lost=LOST)
    configuration += "".join(NODE.format(node=node, port=free_port(), cpus=PROCESSORS) for node in NODES)
    configuration += f"PartitionName=batch Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(configuration)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    cluster = Cluster(folder)
    places = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
    places |= {"seed-file": "munge.seed"}
    try:
        cluster.run("munged", "--force", *(f"--{name}={folder / file}" for name, file in places.items()))
        cluster.run("slurmctld")
        for node in NODES:
            cluster.start_node(node)
        wait_calmly(cluster.idle, "three idle nodes")
        yield cluster
    finally:
        for pid in folder.glob("*.pid"):
            with suppress(psutil.Error, ValueError):
                daemon = psutil.Process(int(pid.read_text()))
                for process in (*daemon.children(recursive=True), daemon):
                    process.kill()
