"""Loader of a client's own data file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import DTypeLike

from fenchel.common.arrays import Indices, is_sparse
from fenchel.common.data import scaling
from fenchel.common.data.extractor import Extracted, Extractor
from fenchel.common.data.files import read_file
from fenchel.common.data.labels import encoded
from fenchel.common.data.limits import ORDINARY, DataLimits
from fenchel.common.data.samples import DataSet, Samples, listed
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError
from fenchel.common.settings.data import DataSettings, Scaling


def load_own(
    path: Path,
    data: DataSettings,
    *,
    label: str | None = None,
    identifier: str | None = None,
    dtype: DTypeLike = np.float64,
    limits: DataLimits = ORDINARY,
) -> Shard:
    """Load a client's own data file as its shard. A test part of a NumPy archive is ignored.

    Parameters
    ----------
    path
        Path of the file.
    data
        Section ``data`` of the settings. If ``data.classes`` is not set, the classes are those of the file, sorted. The
        file may have only some of ``data.columns``. The bias is added only if the file has the last column.
    label
        Name of the label column.
    identifier
        Source of sample identifiers: a column (CSV, Parquet), an array (NumPy), or a text file with one identifier per
        line (LIBSVM). ``None`` for none.
    dtype
        Floating-point type of the features.
    limits
        Limits on the size of the content.

    Raises
    ------
    DataError
        If the file is damaged, or does not fit the settings.
    """
    columns, scalings, bias = data.columns, data.scalings, data.bias
    where = str(path)
    # A single file does not show whether its feature 0 never occurs, or does not exist.
    dataset = read_file(path, label, columns if isinstance(columns, int) else None, identifier, limits=limits, first=1)
    if data.extractor is not None:
        network = Extractor.of(data.extractor, dataset.image, dataset.peak, where)
        made = Extracted(network, dataset.train.features).take(np.arange(len(dataset.train)))
        dataset = DataSet(Samples(made, dataset.train.labels), identifiers=dataset.identifiers)
    _require_scaling_alone(scalings, dataset, where)
    part, held, total = _columns_held(dataset, columns, where)
    if len(held) < total and "unit-rows" in scalings:
        raise DataError(
            f"unit-rows needs all {total} features of a sample, but this file has {len(held)}; scale the columns "
            "of every client's file beforehand",
            source=where,
            key="data.scale",
        )
    normalise = _normalise(data, total, dataset.columns, held, where)
    if bias is not None:
        if held[-1] == total - 1:
            held = np.append(held, total)
        else:
            bias = None
        total += 1
    (labels,), names = encoded([part.labels], data.task, data.classes, where)
    steps = scaling.fit(scalings, part.features, dataset.peak, normalise)
    prepared = scaling.apply(steps, part.features, dtype, bias)
    return Shard(
        prepared,
        labels,
        len(names),
        total,
        np.arange(len(part)),
        None if len(held) == total else held,
        class_names=names,
        column_names=dataset.columns or () if columns is None else (),
        sample_ids=dataset.identifiers,
    )


def _require_scaling_alone(scalings: Sequence[Scaling], dataset: DataSet, where: str) -> None:
    """Raise a ``DataError`` if a step depends on the data of all clients."""
    for position, step in enumerate(scalings):
        pixels = dataset.peak is not None and position == 0
        if step == "standard" or (step == "unit-interval" and not pixels):
            raise DataError(
                f"{step} needs statistics of all clients, which no process has; use normalise, with a mean and a "
                "standard deviation that suit all files, or unit-rows",
                source=where,
                key="data.scale",
            )


def _normalise(
    data: DataSettings, total: int, names: Sequence[str] | None, held: Indices, where: str
) -> scaling.Columns | None:
    """Return the step ``normalise`` for the columns of the file, or ``None`` if the settings have no such step."""
    try:
        step = scaling.constants(data.normalise, total, data.columns if isinstance(data.columns, tuple) else names)
    except DataError as error:
        error.source = where
        raise
    return None if step is None else scaling.Columns(step.shift[held], step.spread[held])


def _columns_held(dataset: DataSet, columns: Sequence[str] | int | None, where: str) -> tuple[Samples, Indices, int]:
    """Sort the features of a client's file by their positions in the run, or raise a ``DataError``.

    Returns
    -------
    tuple[Samples, Indices, int]
        Training samples with features in increasing global position, the global positions, shape (m,), and the number
        of features of the run.
    """
    part, names = dataset.train, dataset.columns
    if columns is None:
        return part, np.arange(dataset.features), dataset.features
    if isinstance(columns, int):
        if names is not None:
            raise DataError(
                f"the number {columns} given, but the columns of this file have names; list the names of all features "
                "of the run",
                source=where,
                key="data.columns",
            )
        return *_numbered_columns(part, columns, where), columns
    if names is None:
        raise DataError(
            f"{len(columns)} names given, but files of this format have no column names; give the number of "
            "features, or use CSV or Parquet files",
            source=where,
            key="data.columns",
        )
    place = {name: position for position, name in enumerate(columns)}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise DataError(
            f"the file has columns that data.columns does not list: {listed(unknown)} (listed: {listed(columns)}). "
            "Remove the unlisted columns from the file, or correct the names (--label and --id name the columns "
            "of the label and of the sample identifiers)",
            source=where,
            key="data.columns",
        )
    positions = np.array([place[name] for name in names])
    order = np.argsort(positions)
    return Samples(part.features[:, order], part.labels), positions[order], len(columns)


def _numbered_columns(part: Samples, total: int, where: str) -> tuple[Samples, Indices]:
    """Return samples restricted to the features of the file, and the features' positions, for unnamed columns."""
    matrix = part.features
    features, sparse = int(matrix.shape[1]), is_sparse(matrix)
    if features > total or (features < total and not sparse):
        raise DataError(
            f"{total} given, but the file has {features} features; expected "
            f"{'at least' if sparse else 'exactly'} {features}",
            source=where,
            key="data.columns",
        )
    if not is_sparse(matrix):
        return part, np.arange(total)
    held = np.unique(matrix.indices).astype(np.int64)
    if len(held) == 0:
        raise DataError(
            f"all values of the file are zero; expected values of some of the {total} features", source=where
        )
    shape = (matrix.shape[0], len(held))
    kept = scipy.sparse.csr_array((matrix.data, np.searchsorted(held, matrix.indices), matrix.indptr), shape=shape)
    return Samples(kept, part.labels), held
