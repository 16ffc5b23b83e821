"""How near `fenchel project` comes to real runs: one on loopback is projected onto a link, and then done over it.

FedAvg, FedDCD and HyFDCA (encrypted, a key of 2048 bits), four clients each, with a round trip of 257.5 ms:
the HyFDCA paper's United States to Singapore. The real run goes through the relay, over TLS, with a process
for each client. The ratio is the projected total, rounds and evaluations, to the real one. Compute takes
longer on a busy machine, now in the one run and now in the other; so there are several pairs of runs, and the
median of their ratios is to be between 0.9 and 1.1. With ``--quick`` there is one pair, and 0.5 to 1.5 will
do.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import as_served  # noqa: F401 - before gRPC is imported
from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from fenchel.common.settings.link import parse_link
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.deployment import Deployment
from fenchel.report.projection.projection import measured, project
from fenchel.report.run import Run
from fenchel.report.timeline import Timeline

_CLIENTS = 4
LINK = "hyfdca-257ms"
_DIGITS = {"name": "digits", "scale": "unit-interval"}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "fedavg": {
        "data": _DIGITS,
        "objective": {"kind": "softmax", "l2": 1e-4},
        "algorithm": {"name": "fedavg", "local_epochs": 2, "batch_size": 16, "step_size": 0.5},
    },
    "feddcd": {"data": _DIGITS, "objective": {"kind": "softmax", "l2": 0.01}, "algorithm": {"name": "feddcd"}},
    "hyfdca": {
        "data": {
            "name": "breast_cancer",
            "scale": "unit-rows",
            "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
        },
        "objective": {"kind": "hinge", "l2": 0.01},
        "algorithm": {"name": "hyfdca", "encryption": {"security": 112}},
    },
}
"""Of the runs, without number of rounds, clients and links."""


def up(name: str, rounds: int, runs: Path, link: Mapping[str, Any] | None = None) -> Run:
    """Do a run of one of the algorithms, with a process for each client.

    link: of every client; ``None``: straight to the server.
    """
    own = {"name": name, "rounds": rounds, "clients": _CLIENTS, "links": link and {"default": link}}
    folder = RunFolder.create(runs, name)
    asyncio.run(Deployment(validate(own | SETTINGS[name]), folder, _CLIENTS).run())
    return Run(folder.path)


def _pair(name: str, rounds: int) -> tuple[float, float, float]:
    """Return the seconds of a run on loopback, of its projection, and of a run over the link."""
    with tempfile.TemporaryDirectory() as temporary:
        near = Timeline.of(up(name, rounds, Path(temporary)))
        far = Timeline.of(up(name, rounds, Path(temporary), {"preset": LINK}))
        link = parse_link({"preset": LINK}, "this benchmark")
        return measured(near).total, project(near, link).total, measured(far).total


def measure(quick: bool) -> Figures:
    """Project and do, for each algorithm."""
    pairs, rounds = (1, 8) if quick else (5, 15)
    rows, worst = [], 0.0
    for name in SETTINGS:
        found = []
        for pair in range(pairs):
            progress(f"{name}, pair {pair + 1} of {pairs}: on loopback, then over {LINK}")
            found.append(_pair(name, rounds))
        ratios = [projected / real for _, projected, real in found]
        median = statistics.median(ratios)
        worst = max(worst, abs(median - 1))
        near, projected, real = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append(
            {
                "algorithm": name,
                "rounds": rounds,
                "loopback s": f"{near:.2f}",
                "projected s": f"{projected:.2f}",
                "real s": f"{real:.2f}",
                "projected / real": f"{median:.3f}",
                "of each pair": ", ".join(f"{ratio:.3f}" for ratio in ratios),
            }
        )
    limits = Limits(quick=quick)
    limits.at_most("|projected / real - 1|, worst", worst, 0.1, timed=True)
    return {"rows": rows, "limits": limits.verdicts, "worst": round(worst, 3)}


if __name__ == "__main__":
    run(__doc__ or "", measure)
