"""A cluster of Ray of three nodes on this machine, in a process of its own: ``python -m tests.cluster.ray_nodes``.

It prints a line of JSON after each order: the address, and the process of each node but the head. A line of standard
input is an order: the process of a node to lose, nothing for one more node, or its PYTHONPATH. The end of its input is
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass
class Nodes:
    """The cluster as tests see it."""

    process: subprocess.Popen[str]
    address: str = ""
    raylets: tuple[int, ...] = ()

    @property
    def engine(self) -> dict[str, Any]:
        """Settings of the engine."""
        return {"address": self.address}

    def order(self, line: str) -> None:
        """Lose a node, whose process is given, or add one, whose PYTHONPATH may be given."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self.read()

    def read(self) -> None:
        """Read what there is now."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                self.address, self.raylets = told["address"], tuple(told["raylets"])
                return
        raise AssertionError("the cluster has ended")

    def lose(self, clients: set[int]) -> None:
        """Lose a node on which some of these processes are, and add another."""
        for raylet in self.raylets:
            if clients & {each.pid for each in psutil.Process(raylet).children(recursive=True)}:
                self.order(str(raylet))
                self.order("")
                return
        raise AssertionError("there are no clients on any node but the head")


@contextmanager
def nodes() -> Iterator[Nodes]:
    """Start a cluster, and end it."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=pipe, stdout=pipe, text=True) as process:
        started = Nodes(process)
        started.read()
        yield started
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    """Run a cluster by orders."""
    from ray.cluster_utils import Cluster

    # With the usual niceness, clients hardly run beside other tests.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it
    size = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 << 20}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    raylets = {}

    def add(path: str = "") -> None:
        os.environ["PYTHONPATH"] = path
        node = cluster.add_node(**size)
        raylets[node.all_processes["raylet"][0].process.pid] = node

    def say() -> None:
        cluster.wait_for_nodes()
        print(json.dumps({"address": cluster.address, "raylets": list(raylets)}), flush=True)

    add()
    add()
    say()
    for line in sys.stdin:
        if line.strip().isdigit():
            cluster.remove_node(raylets.pop(int(line)), allow_graceful=False)
        else:
            add(line.strip())
        say()
    cluster.shutdown()


if __name__ == "__main__":
    main()
