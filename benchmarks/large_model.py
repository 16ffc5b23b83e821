"""Memory of the server for a large model: 100 million float32 (400 MB), two clients, a reduction.

Limit: four times the model. ``--quick`` takes 25 million, where what the process needs anyway weighs more.
"""

from __future__ import annotations

import statistics

from benchmarks.fenchel_echo import measure as echo
from benchmarks.memory import PeakMemory
from benchmarks.program import Figures, run


def measure(quick: bool) -> Figures:
    """Measure the peak of the server's process."""
    floats = 25_000_000 if quick else 100_000_000
    with PeakMemory() as idle:
        pass
    with PeakMemory() as memory:
        measured = echo(2, 2, floats, 3, secure=True, reduce=True)
    row = {
        "floats": f"{floats:.1e}",
        "model MB": round(4 * floats / 1e6),
        "server peak MB": round(memory.peak / 1e6),
        "ratio": round(memory.peak / (4 * floats), 2),
        "round s": round(statistics.median(measured.seconds), 2),
    }
    return {"rows": [row], "idle_mb": round(idle.peak / 1e6)}


if __name__ == "__main__":
    run(__doc__ or "", measure)
