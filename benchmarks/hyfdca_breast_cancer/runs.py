"""The runs about HyFDCA on breast cancer, and what is read from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import fenchel
from benchmarks.experiment import Planned, path_of
from benchmarks.program import progress
from fenchel.common.arrays import Vector

SETTINGS = Path("fenchel/experiments/hyfdca/breast-cancer.yaml")
RUNS = Path("runs/hyfdca-breast-cancer")

LAMBDAS = (0.1, 0.01, 0.001)
COMPARED = 300
"""Rounds after which algorithms are compared."""


def planned(
    name: str, overrides: Sequence[str], folder: Path = RUNS, *, processes: int = 1, in_process: bool = False
) -> Planned:
    """Return a run: what differs from the settings, and where runs are kept."""
    return Planned(SETTINGS, (f"name={name}", *overrides), folder, processes, in_process)


def pool() -> ProcessPoolExecutor:
    """Return processes that do two runs at a time."""
    return ProcessPoolExecutor(2, get_context("spawn"), initializer=hush)


def hush() -> None:
    """Hide what every run in plaintext warns of."""
    logging.getLogger("fenchel").setLevel(logging.ERROR)


def all_done(workers: ProcessPoolExecutor, plan: Iterable[Planned]) -> list[fenchel.Run]:
    """Return the runs that are kept, and do the others."""
    runs = []
    for path in workers.map(path_of, plan):
        progress(path.name)
        runs.append(fenchel.Run(path))
    return runs


def gaps(run: fenchel.Run) -> Vector:
    """Return the duality gap after 0, 1, 2, … rounds; a row has that of the model with which its round began."""
    assert run.summary is not None
    return np.array([*run.metrics_table["gap"].to_numpy(), run.summary["figures"]["gap"]])


def objectives(run: fenchel.Run) -> Vector:
    """Return the objective after 1, 2, … rounds."""
    values: Vector = run.metrics_table["objective"].to_numpy()
    return values


def rounds_to(run: fenchel.Run, target: float) -> int | None:
    """Return the rounds after which the gap is below the target for the first time."""
    below = np.flatnonzero(gaps(run) < target)
    return int(below[0]) if below.size else None
