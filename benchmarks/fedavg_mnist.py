"""Rounds that FedAvg needs on MNIST with two digits per client: 100 clients, 10 a round, softmax.

Real server and client processes over TLS. Writes the table and the figure of ``docs/results/fedavg-mnist.md``;
``--quick`` runs one seed for 60 rounds and writes nothing. Needs MNIST (``fenchel data fetch mnist``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fenchel
from benchmarks.outcome import evaluated, first
from benchmarks.page import made_by, put
from benchmarks.program import Figures, markdown, progress, run
from fenchel.report.render.figure import draw

_EXPERIMENT = "fenchel/experiments/mnist-fedavg.yaml"
_TARGETS = (0.80, 0.85, 0.90)
_PAGE = Path("docs/results/fedavg-mnist.md")


def measure(quick: bool) -> Figures:
    """Run the experiment for one seed, or for three."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        runs = []
        for seed in (1,) if quick else (1, 2, 3):
            progress(f"seed {seed}")
            overrides = [f"seed={seed}", f"name=seed-{seed}", f"rounds={60 if quick else 200}"]
            overrides += ["evaluation.every=1", "evaluation.clients=false"]
            done = fenchel.up(_EXPERIMENT, overrides=overrides, processes=4, runs=temporary)
            runs.append(done)
            rounds, accuracies = evaluated(done, "test_accuracy")
            reached = {f"rounds to {target:.0%}": first(rounds, accuracies, target) for target in _TARGETS}
            rows.append(
                {
                    "seed": seed,
                    **reached,
                    "best": f"{max(accuracies):.2%}",
                    "last 20 rounds": f"{min(accuracies[-20:]):.2%} to {max(accuracies[-20:]):.2%}",
                }
            )
        if not quick:
            draw(runs, _PAGE.with_suffix(".png"))
            put(_PAGE, "seeds", markdown(rows))
            put(_PAGE, "made", made_by("fedavg_mnist"))
    return {"rows": rows}


if __name__ == "__main__":
    run(__doc__ or "", measure)
