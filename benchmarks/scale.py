"""A thousand clients in one run: FedAvg on digits, each client with its own TLS connection.

Measured: seconds of a round, as a ratio to a bare asyncio gRPC echo with as many streams (over TLS, and
without), the peak memory of the server's process, and whether any reply was missed. Limits: 3 times the
round of the bare echo over TLS, 500 MB, no reply missed. ``--quick`` takes 200 clients, and 15 times the round.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from pathlib import Path

from benchmarks import as_served, bare_echo  # noqa: F401 - the first before gRPC is imported
from benchmarks.limits import Limits
from benchmarks.memory import PeakMemory
from benchmarks.program import Figures, progress, run
from benchmarks.rows import Rows
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.names import client_names

_MODEL_BYTES = 65 * 10 * 8  # softmax on 64 pixels and a bias, 10 classes, float64


def settings(clients: int, rounds: int) -> RunSettings:
    """Return the settings: every client takes one step on its one or two digits."""
    return validate(
        {
            "name": "scale",
            "rounds": rounds,
            "clients": clients,
            "data": {"name": "digits", "scale": "unit-interval", "bias": 1.0},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 0.5},
            "evaluation": {"every": rounds, "clients": False},
        }
    )


def measure(quick: bool) -> Figures:
    """Measure Fenchel, then the peer."""
    clients, processes, rounds = (200, 4, 10) if quick else (1000, 20, 20)
    rows = Rows()
    progress(f"{clients} clients in {processes} processes")
    with tempfile.TemporaryDirectory() as temporary, PeakMemory() as memory:
        folder = RunFolder.create(Path(temporary), "scale")
        deployment = Deployment(settings(clients, rounds), folder, clients, processes=processes, observer=rows)
        asyncio.run(deployment.run())
    ours = statistics.median(later - earlier for earlier, later in itertools.pairwise(rows.ends))
    with tempfile.TemporaryDirectory() as temporary:
        progress("bare echo")
        certificates = Path(temporary) / "certificates"
        make_all(certificates, ["localhost"], client_names(1))
        over_tls = statistics.median(bare_echo.measure(clients, processes, _MODEL_BYTES, rounds, certificates))
        plain = statistics.median(bare_echo.measure(clients, processes, _MODEL_BYTES, rounds))
    missed = int(sum(row["asked"] - row["counted"] for row in rows.rows))
    limits = Limits(quick=quick)
    limits.at_most("round / round of the bare echo over TLS", ours / over_tls, 3.0, timed=True)
    limits.at_most("server MB", memory.peak / 1e6, 500)
    limits.at_most("replies missed", missed, 0)
    figures = {
        "clients": clients,
        "round s": round(ours, 4),
        "bare echo TLS s": round(over_tls, 4),
        "bare echo s": round(plain, 4),
        "ratio": round(ours / over_tls, 2),
        "ratio to plain": round(ours / plain, 2),
        "server MB": round(memory.peak / 1e6),
        "missed": missed,
        "accuracy": round(rows.rows[-1]["test_accuracy"], 4),
    }
    return {"rows": [figures], "limits": limits.verdicts}


if __name__ == "__main__":
    run(__doc__ or "", measure)
