"""FedAvg with 64 clients on engines: three nodes of Slurm and of Ray, all on this machine, beside local processes.

Measured: seconds from the command to the first round, and seconds of a round, on each engine in turn; the models must
be equal to the last bit. Limits: twice the round of local, and a minute to the first round. An engine that is not
installed is left out. ``--quick`` takes 16 clients and fewer rounds.
"""

from __future__ import annotations

import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from fenchel.common.storage.run_folder import RunFolder
from tests.cluster import ray_nodes
from tests.cluster.slurm_cluster import NODES, NoSlurmError, slurm


@dataclass(frozen=True)
class Engine:
    """An engine to measure.

    Attributes
    ----------
    settings
        What the engine needs.
    before
        Command that gives the measured one an allocation.
    environment
        Its environment; ``None``: that of this process.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Return the settings: every client takes some steps on its digits."""
    return {
        "name": "engines",
        "rounds": rounds,
        "clients": clients,
        "data": {"name": "digits", "scale": "unit-interval", "bias": 1.0},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": "fedavg", "local_steps": 5, "batch_size": None, "step_size": 0.5},
        "evaluation": {"every": rounds, "clients": False},
    }


def started(stack: ExitStack, processes: int) -> dict[str, Engine]:
    """Start the clusters that this machine can have; return all engines by name."""
    engines = {"local": Engine()}
    try:
        cluster = stack.enter_context(slurm(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
    except NoSlurmError as error:
        progress(f"without Slurm: {error}")
    else:
        before = ("salloc", "--quiet", f"--nodes={len(NODES)}", f"--ntasks={processes}")
        engines["slurm"] = Engine(before=before, environment=cluster.environment())
    if find_spec("ray") is None:
        progress("without Ray: it is not installed")
    else:
        nodes = stack.enter_context(ray_nodes.nodes())
        engines["ray"] = Engine(settings={**nodes.engine, "cpus": 0.25})
    return engines


def measured(name: str, engine: Engine, clients: int, processes: int, rounds: int) -> dict[str, Any]:
    """Return a row of the table: one run on an engine."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings(clients, rounds)))
        command = [*engine.before, sys.executable, "-P", "-m", "fenchel", "up", "settings.yaml", "--on", name]
        if engine.settings:
            (folder / "engine.yaml").write_text(yaml.safe_dump(dict(engine.settings)))
            command += ["--engine", "engine.yaml"]
        begun = time.time()
        subprocess.run(
            [*command, "--processes", str(processes)],
            cwd=folder,
            env=engine.environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        ended = time.time()
        (path,) = (folder / "runs").iterdir()
        table = pq.read_table(RunFolder(path).metrics)
        starts, seconds = table.column("started_unix").to_pylist(), table.column("seconds").to_pylist()
        return {
            "engine": name,
            "to the first round s": round(starts[0] - begun, 2),
            "round ms": round(statistics.median(seconds) * 1e3, 1),
            "whole s": round(ended - begun, 2),
            "model": hashlib.sha256(RunFolder(path).model.read_bytes()).hexdigest()[:8],
        }


def measure(quick: bool) -> Figures:
    """Measure each engine in turn."""
    clients, processes, rounds = (16, 4, 20) if quick else (64, 16, 100)
    rows = []
    with ExitStack() as stack:
        for name, engine in started(stack, processes).items():
            progress(f"{clients} clients in {processes} processes on {name}")
            rows.append(measured(name, engine, clients, processes, rounds))
    limits = Limits(quick=quick)
    local = rows[0]
    for row in rows[1:]:
        limits.at_most(f"round on {row['engine']} / on local", row["round ms"] / local["round ms"], 2.0, timed=True)
        limits.at_most(f"seconds to the first round on {row['engine']}", row["to the first round s"], 60, timed=True)
    limits.at_most("different models", len({row["model"] for row in rows}), 1)
    return {"rows": rows, "limits": limits.verdicts, "clients": clients, "processes": processes, "rounds": rounds}


if __name__ == "__main__":
    run(__doc__ or "", measure)
