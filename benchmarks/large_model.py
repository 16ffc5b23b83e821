"""Memory of the server for a large model: 100 million float32 (400 MB), two clients, a reduction.

A reduction holds three arrays of the model's size: the model, the sum, and a reply or the mean. A reply is
added to the sum only when all of it is here, so that one that breaks off has changed nothing. The rest is
what the process takes for a model of 1,000 numbers, and pieces of messages. Limits: four times the model in
all, and 3.5 times beyond the small model. ``--quick`` takes 70 million, of which no reply fits
``network.reply_buffer_bytes`` either, and judges only the second limit: what the process takes anyway weighs
more there.
"""

from __future__ import annotations

import statistics

from benchmarks.fenchel_echo import measure as echo
from benchmarks.limits import Limits
from benchmarks.memory import PeakMemory
from benchmarks.program import Figures, run

_FEW = 1_000  # floats of the small model


def measure(quick: bool) -> Figures:
    """Measure the peak of the server's process, with a small model first."""
    floats, rounds = (70_000_000, 2) if quick else (100_000_000, 3)
    with PeakMemory() as small:
        echo(2, 2, _FEW, rounds, secure=True, reduce=True)
    with PeakMemory() as memory:
        measured = echo(2, 2, floats, rounds, secure=True, reduce=True)
    model = 4 * floats
    limits = Limits(quick=quick)
    if not quick:
        limits.at_most("server peak / model", memory.peak / model, 4.0)
    limits.at_most("beyond a small model / model", (memory.peak - small.peak) / model, 3.5)
    row = {
        "floats": f"{floats:.1e}",
        "model MB": round(model / 1e6),
        "small model MB": round(small.peak / 1e6),
        "server peak MB": round(memory.peak / 1e6),
        "ratio": round(memory.peak / model, 2),
        "ratio beyond": round((memory.peak - small.peak) / model, 2),
        "round s": round(statistics.median(measured.seconds), 2),
    }
    return {"rows": [row], "limits": limits.verdicts}


if __name__ == "__main__":
    run(__doc__ or "", measure)
