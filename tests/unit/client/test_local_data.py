"""Clients with files of their own hold samples of them out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fenchel.client.local_data import OwnFile
from fenchel.common.settings.run import validate


def test_a_client_holds_samples_of_its_own_file_out(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(1, 100, (40, 6))
    lines = [",".join(["patient", *(f"x{m}" for m in range(6)), "outcome"])]
    lines += [",".join([f"p{n}", *map(str, row), "ill" if n % 2 else "well"]) for n, row in enumerate(values)]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    settings = validate(
        {
            "rounds": 1,
            "clients": 3,
            "data": {"name": "own", "classes": ["ill", "well"], "holdout": 0.25},
            "objective": {"kind": "hinge"},
            "algorithm": {"name": "fedavg", "step_size": 1.0},
        }
    )
    file = OwnFile(tmp_path / "own.csv", "outcome", "patient")
    for scale in ("none", "unit-rows"):  # of what was loaded for other settings nothing is kept
        file.load(settings.model_copy(update={"data": settings.data.model_copy(update={"scale": scale})}))
    assert len(file._loaded) == 1
    held, again = (file.of(settings, 1, 3) for _ in range(2))
    assert held.holdout is not None
    assert (held.shard.samples, held.holdout.samples) == (30, 10)
    together = [*held.shard.identifiers, *held.holdout.identifiers]
    assert sorted(together) == sorted(f"p{n}" for n in range(40))
    for shard in (held.shard, held.holdout):
        rows = [int(name[1:]) for name in shard.identifiers]
        np.testing.assert_array_equal(shard.features, values[rows])
        np.testing.assert_array_equal(shard.labels, np.where(np.array(rows) % 2, 0, 1))
    assert again.shard.identifiers == held.shard.identifiers
