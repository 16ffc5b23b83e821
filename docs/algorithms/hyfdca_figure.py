"""Draws hyfdca.png: the duality gap of HyFDCA's presets against rounds, each from a run in this process.

From the project's root: ``.venv/bin/python docs/algorithms/hyfdca_figure.py``. Takes about a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import fenchel

ROUNDS = 201
"""A row shows the model that its round began with, so the last one is that of 200 rounds."""

RUNS: dict[str, dict[str, Any]] = {
    "linesearch, all coordinates": {"preset": "linesearch"},
    "safe, all coordinates": {"preset": "safe"},
    "exact, 15 coordinates": {"preset": "exact", "picks": 15},
    "paper, all coordinates": {"preset": "paper"},
}
COLORS = ("#1f62a8", "#15806a", "#8447a0", "#c2501a")

PROBLEM: dict[str, Any] = {
    "rounds": ROUNDS,
    "clients": 9,
    "data": {
        "name": "breast_cancer",
        "classes": ["malignant", "benign"],
        "test_split": "scikit-learn",
        "test_seed": 0,
        "scale": ["standard", "unit-rows"],
        "partition": {"kind": "grid", "sample_groups": 3, "feature_groups": 3},
    },
    "objective": {"kind": "hinge", "l2": 0.01},
    "evaluation": {"every": ROUNDS},
    "checkpoint": {"every": ROUNDS},
}


def gaps(algorithm: dict[str, Any]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the gap after 0, 1, ... rounds, shape (ROUNDS,)."""
    values = PROBLEM | {"algorithm": {"name": "hyfdca", "privacy": "none", **algorithm}}
    with tempfile.TemporaryDirectory() as folder:
        run = fenchel.up(values, runs=folder, in_process=True)
        return np.asarray(run.metrics_table["gap"].to_numpy(), np.float64)


def main() -> None:
    """Run everything, and draw."""
    figure = Figure(figsize=(6.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for color, (label, algorithm) in zip(COLORS, RUNS.items(), strict=True):
        axes.semilogy(np.arange(ROUNDS), gaps(algorithm), color=color, linewidth=1.5, label=label)
    axes.set_xlabel("rounds")
    axes.set_ylabel("duality gap")
    axes.set_ylim(1e-6, 30)
    axes.grid(color="#e5e7ea")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("hyfdca.png"), dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
