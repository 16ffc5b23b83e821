"""The job on NVIDIA FLARE: its NumPy recipe in its simulator, which runs each client in a process of its own.

The server's log says when rounds begin, to the millisecond.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.job import Result, start, words

_NAME = "peers"
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})")
_BORDERS = re.compile(r"^\s*(Round \d+ started\.|Finished FedAvg\.)\s*$")


def round_ends(log: str) -> Sequence[float]:
    """Return when each round ended: when the next one began, or the work was finished.

    log: the server's log. Its headings stand below the line that bears their time.
    """
    borders = []
    time: datetime.datetime | None = None
    for line in log.splitlines():
        if found := _LINE.match(line):
            time = datetime.datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f")
        elif _BORDERS.match(line):
            if time is None:
                raise ValueError(f"{line.strip()!r}: no time above it in the log")
            borders.append(time.timestamp())
    return borders[1:]


def main() -> None:
    """Run the simulator and write down when its rounds ended and what the model is."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe  # type: ignore[import-not-found]
    from nvflare.recipe.sim_env import SimEnv  # type: ignore[import-not-found]

    given = words()
    job, folder = given.job, given.folder
    first = folder / "start.npy"
    np.save(first, start(job.floats))
    recipe = NumpyFedAvgRecipe(
        name=_NAME,
        initial_ckpt=str(first),
        min_clients=job.clients,
        num_rounds=job.total,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
    )
    place = SimEnv(num_clients=job.clients, num_threads=job.clients, workspace_root=str(folder / "nvflare"))
    recipe.execute(place)
    server = folder / "nvflare" / _NAME / "server"
    model = np.load(server / "simulate_job" / "models" / "server.npy")
    Result(round_ends((server / "log.txt").read_text()), model).write(folder)


if __name__ == "__main__":
    main()
