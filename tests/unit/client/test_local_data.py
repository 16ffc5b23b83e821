"""Clients with files of their own hold parts of one matrix, once their samples are aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fenchel.client.local_data import LocalData, OwnFile
from fenchel.common.settings.run import validate

KEY = b"a key that the clients share"
NAMES = [f"x{m}" for m in range(6)]
SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "clients": 3,
    "data": {"name": "own", "columns": NAMES, "classes": ["ill", "well"]},
    "objective": {"kind": "hinge"},
    "algorithm": {"name": "fedavg", "step_size": 1.0},
}


def table(folder: Path, name: str, values: np.ndarray, rows: np.ndarray, columns: list[int]) -> OwnFile:
    """Write some rows and columns of a matrix, the columns in the order given, as a client's file."""
    lines = [",".join(["patient", *(NAMES[m] for m in columns), "outcome"])]
    lines += [",".join([f"p{n}", *(f"{values[n, m]:.0f}" for m in columns), "ill" if n % 2 else "well"]) for n in rows]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n")
    return OwnFile(path, "outcome", "patient")


def test_a_client_holds_samples_of_its_own_file_out(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(1, 100, (40, 6)).astype(np.float64)
    file = table(tmp_path, "north", values, np.arange(40), list(range(6)))
    data = {"name": "own", "classes": ["ill", "well"], "holdout": 0.25}
    held = LocalData(file).of(validate(SETTINGS | {"data": data}), 1, 3)
    assert held.holdout is not None
    assert (held.shard.samples, held.holdout.samples) == (30, 10)
    together = [*held.shard.identifiers, *held.holdout.identifiers]
    assert sorted(together) == sorted(f"p{n}" for n in range(40))
    for shard in (held.shard, held.holdout):
        rows = [int(name[1:]) for name in shard.identifiers]
        np.testing.assert_array_equal(shard.features, values[rows])
        np.testing.assert_array_equal(shard.labels, np.where(np.array(rows) % 2, 0, 1))
    again = LocalData(file).of(validate(SETTINGS | {"data": data}), 1, 3)
    assert again.shard.identifiers == held.shard.identifiers
