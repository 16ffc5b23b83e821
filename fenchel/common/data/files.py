"""Readers of data files in all known formats, by suffix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import is_sparse
from fenchel.common.data.compressed import opened, plain_name
from fenchel.common.data.identifiers import of_lines
from fenchel.common.data.libsvm import read_libsvm
from fenchel.common.data.limits import ORDINARY, DataLimits, within_memory
from fenchel.common.data.npz import is_idx, joined, read_arrays, read_idx, read_npz
from fenchel.common.data.samples import DataSet, Samples, flatten_images, order_of, samples, widen
from fenchel.common.errors import DataError

FORMS = "LIBSVM (.libsvm, .svm), CSV (.csv, .tsv), Parquet (.parquet), NumPy (.npz), IDX images (-ubyte)"
"""Known formats, for messages. All but Parquet and NumPy may be compressed (.gz, .bz2, .xz)."""

_LIBSVM_LINE = re.compile(rb"\s*[-+.\w]+(\s+\d+:\S+)*\s*(#.*)?$")
_TEST_NAME = re.compile(r"(^|[._-])(t10k|test|t)([._-]|$)", re.IGNORECASE)


def read_file(
    path: Path,
    label: str | None = None,
    features: int | None = None,
    identifier: str | None = None,
    holder: str | None = None,
    limits: DataLimits = ORDINARY,
    first: int | None = None,
    usual_label: str | None = None,
) -> DataSet:
    """Read one file in a known format.

    Parameters
    ----------
    path
        Path of the file. Its suffix determines the format. With an unknown suffix, the file must be LIBSVM.
    label
        Name of the label column, for CSV and Parquet.
    features
        Number of features of a LIBSVM file; ``None`` counts up to the largest index that occurs.
    identifier
        Source of sample identifiers: a column (CSV, Parquet), an array (NumPy), or a text file with one identifier per
        line (LIBSVM). ``None`` for none.
    holder
        Name of the column, or of the array of a NumPy archive, with the holder of each sample; ``None`` for none.
    limits
        Limits on the size of the content.
    first
        Index of the first feature of a LIBSVM file; ``None`` for 0 if the index 0 occurs, otherwise 1.
    usual_label
        Name of the label column in other files of the same set, for CSV and Parquet. It is the label of this file if
        ``label`` is ``None`` and there is such a column.

    Raises
    ------
    DataError
        If the format is unknown, the file is damaged or exceeds the limits, or an option does not fit the format.
    """
    name = plain_name(path)
    form = name.rpartition(".")[2] if "." in name else ""
    if label is not None and form not in ("csv", "tsv", "data", "parquet"):
        raise DataError(
            "the label is given as a column name, but only CSV and Parquet files have column names; leave it out",
            source=path,
            column=label,
        )
    if holder is not None and form not in ("csv", "tsv", "data", "parquet", "npz"):
        raise DataError(
            f"{holder!r} given, but only CSV, Parquet and NumPy files can name holders; leave it out, or use such "
            "a file",
            source=path,
            key="data.partition.column",
        )
    with within_memory(path):
        match form:
            case "npz":
                dataset = read_npz(path, holder, identifier, limits)
            case "parquet" | "csv" | "tsv" | "data":
                from fenchel.common.data.columns import Roles, read_csv, read_parquet  # late import: Arrow takes 35 MB

                read = read_parquet if form == "parquet" else read_csv
                dataset = read(path, Roles(label, usual_label, identifier, holder), limits)
            case _:
                if form not in ("libsvm", "svm", "svmlight"):
                    _require_libsvm(path)
                train = read_libsvm(path, features, limits, first)
                named = None if identifier is None else of_lines(Path(identifier), len(train), path, limits)
                dataset = DataSet(train, identifiers=named)
    limits.require_features(dataset.features, path)
    return dataset


def _require_libsvm(path: Path) -> None:
    """Reject a file whose first line is not in LIBSVM format."""
    with opened(path) as stream:
        first = stream.readline(100_000)
    if not first.strip() or not _LIBSVM_LINE.match(first):
        raise DataError(f"the format of the file is unknown; expected {FORMS}. Save spreadsheets as CSV", source=path)


def read_files(files: Sequence[Path], label: str | None = None, limits: DataLimits = ORDINARY) -> DataSet:
    """Read a data set from several files.

    Tables (LIBSVM, CSV, Parquet, NumPy with labels) are stacked in the given order. Named columns take the order of the
    first training file. One file with an array of features and one with an array of labels (IDX, or NumPy with one
    array) form a table. A file is part of the test set if its name has the part ``test``, ``t10k`` or ``t`` between
    dots, dashes or underscores.

    Parameters
    ----------
    files
        Paths of the files.
    label
        Name of the label column, for CSV and Parquet; ``None`` for that of the first training file.
    limits
        Limits on the size of each file.

    Raises
    ------
    DataError
        If a file cannot be read, the files do not fit each other or have different column names, or all belong to the
        test set.
    """
    if not files:
        raise DataError("no files given; give at least one")
    parts: dict[bool, list[DataSet]] = {False: [], True: []}
    arrays: dict[bool, list[tuple[Path, NDArray[Any]]]] = {False: [], True: []}
    named: tuple[DataSet, Path] | None = None  # the first file with column names, whose order the others take
    for path in sorted(files, key=_is_test):
        test = _is_test(path)
        array = _lone_array(path, limits)
        if array is not None:
            arrays[test].append((path, array))
        else:
            part = read_file(path, label, limits=limits, usual_label=named[0].label if named else None)
            if part.label is not None:
                named = named or (part, path)
                part = _aligned(part, path, *named)
            parts[test].append(part)
    for test, found in arrays.items():
        if found:
            parts[test].append(_pair(found))
    if not parts[False]:
        raise DataError(
            "only test files given; give training files as well", source=", ".join(str(path) for path in files)
        )
    published = [part.test for part in parts[False] if part.test is not None]
    train = _stack([part.train for part in parts[False]], files)
    tests = published + [part.train for part in parts[True]]
    first = parts[False][0]
    made = joined(train, _stack(tests, files) if tests else None, first.image, first.peak, str(files[0]))
    return replace(made, columns=first.columns, label=first.label) if first.label is not None else made


def _is_test(path: Path) -> bool:
    return bool(_TEST_NAME.search(plain_name(path)))


def _aligned(part: DataSet, path: Path, first: DataSet, first_path: Path) -> DataSet:
    """Return a data set with its columns in the order of the first file's, or raise a ``DataError``."""
    if (part.columns, part.label) == (first.columns, first.label):
        return part
    expected, names = ((*(each.columns or ()), each.label or "") for each in (first, part))
    order = order_of(expected, names, str(first_path), source=path)[:-1]
    train = replace(part.train, features=part.train.features[:, order])
    test = None if part.test is None else replace(part.test, features=part.test.features[:, order])
    return replace(part, train=train, test=test, columns=first.columns)


def _lone_array(path: Path, limits: DataLimits) -> NDArray[Any] | None:
    """Return the array of a file with a single unnamed array, or ``None``."""
    with within_memory(path):
        if is_idx(path):
            return read_idx(path, limits)
        if path.suffix == ".npz":
            arrays = read_arrays(path, limits)
            if list(arrays) == ["arr_0"]:
                return arrays["arr_0"]
    return None


def _pair(found: list[tuple[Path, NDArray[Any]]]) -> DataSet:
    images = [array for _, array in found if array.ndim > 1]
    labels = [array for _, array in found if array.ndim == 1]
    names = ", ".join(str(path) for path, _ in found)
    if len(images) != 1 or len(labels) != 1:
        raise DataError(
            f"{len(images)} arrays of images and {len(labels)} of labels given; expected one of each", source=names
        )
    rows, image = flatten_images(images[0])
    peak = 255.0 if image is not None and rows.dtype == np.uint8 else None
    return DataSet(samples(rows, labels[0], names), image=image, peak=peak)


def _stack(parts: list[Samples], files: Sequence[Path]) -> Samples:
    if len(parts) == 1:
        return parts[0]
    sparse = {is_sparse(part.features) for part in parts}
    width = max(int(part.features.shape[1]) for part in parts)
    parts = [widen(part, width) for part in parts]
    if len(sparse) > 1 or any(part.features.shape[1] != width for part in parts):
        shapes = ", ".join(str(part.features.shape) for part in parts)
        raise DataError(
            f"the files differ in format or number of features: {shapes}; expected the same for all", source=files[0]
        )
    features: Any = [part.features for part in parts]
    stacked = scipy.sparse.vstack(features, format="csr") if sparse == {True} else np.concatenate(features)
    return Samples(stacked, np.concatenate([part.labels for part in parts]))
