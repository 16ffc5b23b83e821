"""HyFDCA over files that clients bring: identifiers match samples, whatever the form and order of the files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fenchel.common.arrays import Vector
from fenchel.common.data.own_file import load_own
from fenchel.common.data.shard import Shard
from fenchel.common.errors import ContradictingLabelsError
from fenchel.common.settings.data import DataSettings
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from tests.algorithms.latecomers import Federation
from tests.messages import raises

SAMPLES, FEATURES = 40, 6
COLUMNS = [f"x{column}" for column in range(FEATURES)]
HOLDERS = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
"""Every client holds some columns of every sample."""

Writer = Callable[[Path, Any, Any, list[str], list[int]], tuple[Path, str | None]]


def problem() -> tuple[Any, Any]:
    """Return rows, a third of whose values are zero, and their labels."""
    chance = np.random.default_rng(5)
    rows = chance.standard_normal((SAMPLES, FEATURES)) * (chance.random((SAMPLES, FEATURES)) < 2 / 3)
    rows[:, ::3] += 0.1  # no column of a file is empty
    return rows, np.where(rows @ chance.standard_normal(FEATURES) > 0, 1, 0)


def as_csv(path: Path, rows: Any, labels: Any, ids: list[str], columns: list[int]) -> tuple[Path, str | None]:
    with (file := path.with_suffix(".csv")).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["patient", *(COLUMNS[column] for column in columns), "label"])
        writer.writerows(
            [each, *(repr(float(value)) for value in row[columns]), label]
            for each, row, label in zip(ids, rows, labels, strict=True)
        )
    return file, "patient"


def as_libsvm(path: Path, rows: Any, labels: Any, ids: list[str], columns: list[int]) -> tuple[Path, str | None]:
    file, beside = path.with_suffix(".libsvm"), path.with_suffix(".ids")
    held = np.zeros_like(rows)
    held[:, columns] = rows[:, columns]
    with file.open("w") as stream:
        for row, label in zip(held, labels, strict=True):
            values = (f"{column + 1}:{float(row[column])!r}" for column in np.flatnonzero(row))
            stream.write(" ".join([str(label), *values]) + "\n")
    beside.write_text("\n".join(ids) + "\n")
    return file, str(beside)


def as_npz(path: Path, rows: Any, labels: Any, ids: list[str], columns: list[int]) -> tuple[Path, str | None]:
    held = np.zeros_like(rows)
    held[:, columns] = rows[:, columns]
    matrix = sp.csr_array(held)
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(file := path.with_suffix(".npz"), y=labels, patient=np.array(ids), **parts)
    return file, "patient"


def model(folder: Path, writer: Writer, *, seed: int | None, identified: bool = True) -> Vector:
    """Return the model of a run over the holders' files, each shuffled in its own way unless ``seed`` is ``None``."""
    folder.mkdir()
    rows, labels = problem()
    columns: Any = COLUMNS if writer is as_csv else FEATURES
    data = DataSettings.model_validate({"name": "own", "classes": [0, 1], "columns": columns})
    shards: dict[str, Shard] = {}
    for position, (name, of) in enumerate(HOLDERS.items()):
        order = np.arange(SAMPLES)
        if seed is not None:
            order = np.random.default_rng([seed, position]).permutation(order)
        ids = [f"P-{sample * 7919 % 1000:03d}" for sample in order.tolist()]
        file, identifier = writer(folder / name, rows[order], labels[order], ids, of)
        shards[name] = load_own(file, data, identifier=identifier)
        if not identified:
            shards[name] = Shard(*(getattr(shards[name], field) for field in _ALL_BUT_IDS))
    settings = validate(
        {
            "rounds": 4,
            "clients": len(shards),
            "data": data,
            "objective": {"kind": "logistic", "l2": 0.05},
            "algorithm": {"name": "hyfdca", "privacy": "none"},
            "evaluation": {"server": False, "clients": False},
        }
    )
    return Federation(settings, RunFolder.create(folder, "own"), shards).run()


_ALL_BUT_IDS = ("features", "labels", "classes", "total_features", "samples_held", "features_held")


def test_sparse_files_with_identifiers_give_the_same_bits_in_both_forms(tmp_path: Path) -> None:
    libsvm = model(tmp_path / "libsvm", as_libsvm, seed=1)
    npz = model(tmp_path / "npz", as_npz, seed=1)
    assert libsvm.tobytes() == npz.tobytes()
    assert np.abs(libsvm).min() > 1e-3  # every client has had its part in it


@pytest.mark.parametrize("writer", [as_libsvm, as_npz])
def test_identifiers_match_samples_as_those_of_a_table_do(tmp_path: Path, writer: Writer) -> None:
    table = model(tmp_path / "table", as_csv, seed=1)
    np.testing.assert_allclose(model(tmp_path / "same", writer, seed=1), table, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model(tmp_path / "other", writer, seed=2), table, rtol=0, atol=1e-12)


def test_without_identifiers_shuffled_files_are_refused_as_their_labels_differ(tmp_path: Path) -> None:
    with raises(ContradictingLabelsError) as caught:
        model(tmp_path / "mixed", as_csv, seed=1, identified=False)
    assert caught.value.contradictions > 0
