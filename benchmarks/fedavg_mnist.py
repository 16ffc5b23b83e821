"""Rounds that FedAvg needs on MNIST with two digits per client: 100 clients, 10 a round, softmax.

Real server and client processes over TLS. Writes ``docs/results/fedavg-mnist.md`` and its figure; ``--quick``
runs one seed for 60 rounds and writes nothing. Needs MNIST (``fenchel data fetch mnist``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fenchel
from benchmarks.machine import description
from benchmarks.program import Figures, markdown, progress, run
from fenchel.report.render.figure import draw

_EXPERIMENT = "experiments/mnist-fedavg.yaml"
_TARGETS = (0.80, 0.85, 0.90)
_PAGE = Path("docs/results/fedavg-mnist.md")


def rounds_to(accuracies: list[float], target: float) -> int | None:
    """Return the first round whose test accuracy reaches the target, counted from 1."""
    return next((t for t, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)


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
            accuracies = done.metrics_table["test_accuracy"].to_pylist()
            reached = {f"rounds to {target:.0%}": rounds_to(accuracies, target) for target in _TARGETS}
            rows.append(
                {
                    "seed": seed,
                    **reached,
                    "best": f"{max(accuracies):.2%}",
                    "last 20 rounds": f"{min(accuracies[-20:]):.2%} to {max(accuracies[-20:]):.2%}",
                    "s a round": f"{sum(done.metrics_table['seconds'].to_pylist()) / len(accuracies):.3f}",
                }
            )
        if not quick:
            _PAGE.parent.mkdir(exist_ok=True)
            draw(runs, _PAGE.with_suffix(".png"))
            _PAGE.write_text(_page(rows))
    return {"rows": rows}


def _page(rows: list[dict[str, object]]) -> str:
    return f"""# FedAvg on MNIST, two digits per client

100 clients hold two digits each; 10 of them take part in a round, one epoch of batches of 10 each. Softmax
regression, test accuracy on the 10,000 test images after every round. Settings: `{_EXPERIMENT}`.

{markdown(rows)}

With two digits per client the accuracy goes up and down from round to round: ten clients may miss some digits
altogether. "Rounds to" is the first round that reaches the accuracy.

![Curves of the three seeds](fedavg-mnist.png)

Made by `python -m benchmarks.fedavg_mnist`, server and clients in separate processes over TLS, on
{description()}.
"""


if __name__ == "__main__":
    run(__doc__ or "", measure)
