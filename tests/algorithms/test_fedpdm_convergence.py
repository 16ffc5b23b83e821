"""FedPDM on the digits of the specification, section 6.3, setup A: it learns as well as it was seen to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process

LOCAL = {"name": "fedpdm", "step_size": 0.05, "local_steps": 20, "batch_size": 10, "batches": "independent"}
SEEDS = (0, 1)
SAMPLED = {"penalty": 1.0, "aggregator": "sampled"}
TOP_HALF = {"support": "top-k", "keep": 0.5}
LONG = pytest.mark.slow  # make test-all


def learned(parent: Path, algorithm: dict[str, Any], **links: Any) -> tuple[float, float, float]:
    """F, the accuracy, and the number of weights that are not zero after 200 rounds; means over the seeds."""
    ends = []
    for seed in SEEDS:
        settings = validate(
            {
                "name": f"digits-{seed}",
                "seed": seed,
                "rounds": 200,
                "clients": 20,
                "data": {
                    "name": "digits",
                    "bias": 1.0,
                    "scale": "unit-interval",
                    "test_fraction": 0.2,
                    "partition": {"kind": "label-shards", "per_client": 2},
                },
                "objective": {"kind": "softmax", "nonconvex": 1e-3, "regularizer": {"kind": "l1", "weight": 1e-3}},
                "algorithm": LOCAL | algorithm,
                "participation": {"sampler": {"kind": "fixed", "size": 6}},
                "evaluation": {"every": 200},
                **links,
            }
        )
        folder = RunFolder.create(parent, settings.name)
        figures = asyncio.run(run_in_process(settings, folder)).figures
        with np.load(folder.model) as archive:
            nonzeros = np.count_nonzero(archive["model"])
        ends.append((figures["objective"], figures["test_accuracy"], float(nonzeros)))
    objective, accuracy, nonzeros_ = np.mean(ends, axis=0)
    return float(objective), float(accuracy), float(nonzeros_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "up", "down", "most_f", "least_accuracy"),
    [
        pytest.param({"penalty": 0.3, "aggregator": "hybrid"}, None, None, 0.45, 0.95, id="hybrid"),
        pytest.param(SAMPLED, None, None, 0.53, 0.93, id="sampled", marks=LONG),
        pytest.param(SAMPLED, TOP_HALF, TOP_HALF, 0.58, 0.91, id="top-k both ways"),
        pytest.param(SAMPLED, {"support": "random", "keep": 0.1}, None, 0.71, 0.89, id="random, held", marks=LONG),
        pytest.param(
            {"penalty": 0.3, "aggregator": "stale", "error_feedback": "ef21"},
            {"support": "top-k", "keep": 0.1},
            None,
            0.53,
            0.92,
            id="ef21 stale",
            marks=LONG,
        ),
    ],
)
def test_it_learns_as_well_as_it_was_seen_to(
    algorithm: dict[str, Any],
    up: dict[str, Any] | None,
    down: dict[str, Any] | None,
    most_f: float,
    least_accuracy: float,
    tmp_path: Path,
) -> None:
    objective, accuracy, nonzeros = learned(tmp_path, algorithm, uplink={"sparsify": up}, downlink={"sparsify": down})
    assert 0.40 < objective <= most_f, "the optimum is about 0.41"
    assert accuracy >= least_accuracy
    assert nonzeros < 520, "of 650; the prox is at work"
    if down:
        assert nonzeros <= 325
