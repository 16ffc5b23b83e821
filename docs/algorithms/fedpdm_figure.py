"""Draws fedpdm.png: FedPDM's aggregators and its penalty against rounds, each line from a run in this process.

From the project's root: ``.venv/bin/python docs/algorithms/fedpdm_figure.py``. Takes some minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import fenchel

ROUNDS = 200

STEPS: dict[str, Any] = {"local_steps": 20, "batch_size": 10, "step_size": 0.05, "batches": "independent"}

AGGREGATORS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg", "weighting": "uniform", "regularizer_step": "prox"},
    "sampled": {"penalty": 0.3, "aggregator": "sampled"},
    "stale": {"penalty": 0.3, "aggregator": "stale"},
    "hybrid": {"penalty": 0.3, "aggregator": "hybrid"},
}
PENALTIES: dict[str, dict[str, Any]] = {
    "ρ = 3, Q = 20": {"penalty": 3.0},
    "ρ = 1, Q = 80": {"penalty": 1.0, "local_steps": 80},
    "ρ = 1, Q = 20": {"penalty": 1.0},
    "ρ = 0.3, Q = 20": {"penalty": 0.3},
}
COLORS = ("#c2501a", "#8447a0", "#15806a", "#1f62a8")
DASHED = "ρ = 1, Q = 20"  # lies on another line

PROBLEM: dict[str, Any] = {
    "rounds": ROUNDS,
    "clients": 20,
    "data": {
        "name": "digits",
        "scale": "unit-interval",
        "bias": 1.0,
        "partition": {"kind": "label-shards", "per_client": 2},
    },
    "objective": {"kind": "softmax", "nonconvex": 0.001, "regularizer": {"kind": "l1", "weight": 0.001}},
    "participation": {"sampler": {"kind": "fixed", "size": 6}},
    "checkpoint": {"every": ROUNDS},
}


def objectives(algorithm: dict[str, Any]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the objective after each round, shape (ROUNDS,)."""
    values = PROBLEM | {"algorithm": {"name": "fedpdm", **STEPS, **algorithm}}
    with tempfile.TemporaryDirectory() as folder:
        run = fenchel.up(values, runs=folder, in_process=True)
        return np.asarray(run.metrics_table["objective"].to_numpy(), np.float64)


def draw(axes: Axes, title: str, runs: dict[str, dict[str, Any]]) -> None:
    """Draw one line for each run."""
    for color, (label, algorithm) in zip(COLORS, runs.items(), strict=True):
        reached = objectives(algorithm)
        style = "--" if label == DASHED else "-"
        axes.plot(np.arange(1, ROUNDS + 1), reached, style, color=color, linewidth=1.5, label=label)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("rounds")
    axes.set_ylim(0.4, 1.2)
    axes.grid(color="#e5e7ea")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Run everything, and draw."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    draw(left, "what the model is made of, ρ = 0.3, Q = 20", AGGREGATORS)
    draw(right, "penalty and number of local steps, hybrid", PENALTIES)
    left.set_ylabel("objective")
    figure.savefig(Path(__file__).with_name("fedpdm.png"), dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
