"""Clients with files of their own hold parts of one matrix, once their samples are aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fenchel.algorithms.hyfdca.alignment import HeldEntries, align
from fenchel.client.local_data import LocalData, OwnFile
from fenchel.client.secrets.pseudonyms import pseudonyms
from fenchel.common.data.shard import Shard
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


def test_files_of_hybrid_data_are_one_matrix_again_once_they_are_aligned(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.integers(1, 100, (40, 6)).astype(np.float64)
    everybody = random.permutation(40)
    own = {  # two hospitals with different patients, a laboratory with some of each
        "north": table(tmp_path, "north", values, everybody[:25], [2, 0, 1]),
        "south": table(tmp_path, "south", values, everybody[25:], [0, 1, 2, 5]),
        "laboratory": table(tmp_path, "laboratory", values, random.permutation(40)[:30], [4, 3]),
    }
    shards = {name: LocalData(file).of(validate(SETTINGS), 0, 3).shard for name, file in own.items()}
    alignment = align(
        {name: said(shard) for name, shard in shards.items()}, features=6, block=4, ragged=False, random=random
    )
    rebuilt = np.zeros((alignment.samples, 6))
    label = np.full(alignment.samples, -1)
    who = np.full(alignment.samples, -1)
    for name, shard in shards.items():
        part = alignment.slices[name]
        assert shard.features_held is not None
        rebuilt[np.ix_(part.positions, shard.features_held)] += np.asarray(shard.features)[part.order]
        labels = shard.labels[part.order]
        known = label[part.positions] >= 0
        np.testing.assert_array_equal(label[part.positions][known], labels[known])
        label[part.positions] = labels
        who[part.positions] = [int(shard.identifiers[row][1:]) for row in part.order]
    assert sorted(who) == list(range(40))
    held = np.zeros((40, 6), np.bool_)
    held[:, :3] = True
    held[everybody[25:], 5] = True
    held[[int(each[1:]) for each in shards["laboratory"].identifiers], 3:5] = True
    np.testing.assert_array_equal(rebuilt, np.where(held, values, 0)[who])
    np.testing.assert_array_equal(label, np.where(who % 2, 0, 1))
    np.testing.assert_array_equal(alignment.feature_holders, [2, 2, 2, 1, 1, 1])


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


def said(shard: Shard) -> HeldEntries:
    """Return what a client says of its shard."""
    assert shard.features_held is not None
    return HeldEntries(pseudonyms(KEY, shard.identifiers), shard.features_held)
