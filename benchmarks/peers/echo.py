"""The floor: a bare asyncio gRPC echo of the same bytes, which adds nothing and takes no mean."""

from __future__ import annotations

import asyncio
import itertools

from benchmarks import bare_echo_processes
from benchmarks.peers.job import Result, words

_FLOAT_BYTES = 4


def main() -> None:
    """Run the echo and write down when its rounds ended."""
    given = words()
    job = given.job
    seconds = asyncio.run(
        bare_echo_processes.measure(job.clients, job.clients, _FLOAT_BYTES * job.floats, job.total - 1)
    )
    Result(list(itertools.accumulate(seconds, initial=0.0)), None).write(given.folder)


if __name__ == "__main__":
    main()
