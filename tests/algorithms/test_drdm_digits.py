"""DRDM and DRFA on the digits of the specification, section 6.3: the worst client gains as much as was measured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process

LOCAL = {"step_size": 0.1, "local_steps": 10, "batch_size": 32}
DUAL = {"dual_step_size": 1e-3}
DRDM = {"name": "drdm", "regularization": 0.1, "exploration": 0, "dual_estimator": "plain", **LOCAL, **DUAL}
SEEDS = range(10)


def worst_accuracy(parent: Path, algorithm: dict[str, Any]) -> float:
    """The least accuracy of a client on its own test set after 20 rounds on the split "dir"; mean of the seeds."""
    ends = []
    for seed in SEEDS:
        settings = validate(
            {
                "name": f"digits-{seed}",
                "seed": seed,
                "rounds": 20,
                "clients": 10,
                "data": {
                    "name": "digits",
                    "scale": "unit-interval",
                    "bias": 1.0,
                    "test_fraction": 0.0,
                    "holdout": 0.25,
                    "partition": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 40},
                },
                "objective": {"kind": "softmax", "l2": 1e-4},
                "participation": {"sampler": {"kind": "fixed", "size": 5}},
                "algorithm": algorithm,
                "evaluation": {"every": 20},
            }
        )
        figures = asyncio.run(run_in_process(settings, RunFolder.create(parent, settings.name))).figures
        ends.append(figures["client_accuracy_worst"])
    return float(np.mean(ends))


@pytest.mark.slow
def test_by_round_20_the_worst_client_is_far_better_off(tmp_path: Path) -> None:
    """Section 7.4: 20 points ahead of FedAvg and DRFA; measured there: 83.1, 83.4, 42.9 and 40.9 percent."""
    paper = worst_accuracy(tmp_path, DRDM | {"correction": "uniform"})
    table = worst_accuracy(tmp_path, DRDM | {"correction": "lambda-table"})
    fedavg = worst_accuracy(tmp_path, {"name": "fedavg", "batches": "independent", **LOCAL})
    drfa = worst_accuracy(tmp_path, {"name": "drfa", **LOCAL, **DUAL})
    assert min(paper, table) >= max(fedavg, drfa) + 0.2
