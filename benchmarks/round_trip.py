"""Seconds of a round for so many clients and floats, against a bare asyncio gRPC echo of the same bytes.

Both run in turn, several times, on one stream for each client without TLS: the peer is raw bytes and
nothing else. A round of Fenchel includes all of its bookkeeping: checks, metrics, checkpoints. The ratio
is that of the medians; limits are 1.3 at 4 clients and 1e6 floats, and 5 ms at 4 clients and 1e3 floats; five
times as much with ``--quick``.
"""

from __future__ import annotations

import statistics

from benchmarks import bare_echo, fenchel_echo
from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run

_PROCESSES = 4
_FULL = [(clients, floats) for floats in (1_000, 100_000, 1_000_000, 10_000_000) for clients in (2, 4, 16, 64)]
_QUICK = [(4, 1_000), (4, 1_000_000)]


def measure(quick: bool) -> Figures:
    """Measure the grid, or its two corners with a limit."""
    rows: list[dict[str, object]] = []
    limits = Limits(quick=quick)
    figures: Figures = {"rows": rows, "limits": limits.verdicts}
    for clients, floats in _QUICK if quick else _FULL:
        progress(f"{clients} clients, {floats:,} floats")
        bare, ours = _pair(clients, floats, repeats=2)
        rows.append(
            {
                "clients": clients,
                "floats": f"{floats:.0e}",
                "bare echo ms": f"{1e3 * bare:.2f}",
                "fenchel ms": f"{1e3 * ours:.2f}",
                "rounds/s": f"{1 / ours:.1f}",
                "ratio": f"{ours / bare:.2f}",
            }
        )
        if (clients, floats) == (4, 1_000_000):
            figures["ratio_4_clients_1e6_floats"] = round(ours / bare, 3)
            limits.at_most("ratio, 4 clients, 1e6 floats", ours / bare, 1.3, timed=True)
        if (clients, floats) == (4, 1_000):
            figures["round_ms_4_clients_1e3_floats"] = round(1e3 * ours, 3)
            limits.at_most("round, 4 clients, 1e3 floats, ms", 1e3 * ours, 5.0, timed=True)
    return figures


def _pair(clients: int, floats: int, repeats: int) -> tuple[float, float]:
    """Return median seconds of the bare echo and of Fenchel, taken in turn."""
    rounds = max(3, min(200, 60_000_000 // (clients * floats)))
    processes = min(clients, _PROCESSES)
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(repeats):
        bare += bare_echo.measure(clients, processes, 4 * floats, rounds)
        ours += fenchel_echo.measure(clients, processes, floats, rounds, secure=False).seconds
    return statistics.median(bare), statistics.median(ours)


if __name__ == "__main__":
    run(__doc__ or "", measure)
