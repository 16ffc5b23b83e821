"""Readers of the public files of named data sets.

Functions take the paths of the files in the order of the catalogue, and raise a ``DataError`` for damaged files.
"""

from __future__ import annotations

import io
import tarfile
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.compressed import opened
from fenchel.common.data.libsvm import read_libsvm
from fenchel.common.data.npz import joined, read_arrays, read_npy
from fenchel.common.data.samples import DataSet, Samples, samples
from fenchel.common.errors import DataError

_ADULT_COLUMNS = 15
_ADULT_NUMERIC = (0, 2, 4, 10, 11, 12)
_CIFAR_PIXELS = 3 * 32 * 32
RCV1_FEATURES = 47_236


def bundled(name: str, image: tuple[int, int, int] | None = None, peak: float | None = None) -> DataSet:
    """Load a data set that is installed with Fenchel."""
    path = resources.files("fenchel.common.data") / "bundled" / f"{name}.npz"
    with path.open("rb") as file, np.load(file) as arrays:
        return DataSet(Samples(arrays["X"], arrays["y"]), image=image, peak=peak)


def _read_cifar(path: Path, *, classes: int) -> DataSet:
    """Read the binary archive of CIFAR-10 or CIFAR-100, with one or two label bytes and 3x32x32 pixels per image.

    Of the two labels in CIFAR-100, coarse and fine, the fine label is returned.
    """
    folder, names = "cifar-100-binary", (["train"], ["test"])
    if classes == 10:
        folder, names = "cifar-10-batches-bin", ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"])
    label_bytes = 1 if classes == 10 else 2
    parts: list[Samples] = []
    try:
        with opened(path) as stream:
            # Memory is allocated for the content, not for the size claimed by the archive.
            content = io.BytesIO(stream.read())
        with tarfile.open(fileobj=content) as archive:
            for part in names:
                found = [archive.extractfile(f"{folder}/{name}.bin") for name in part]
                joint = b"".join(member.read() for member in found if member)
                records = np.frombuffer(joint, np.uint8).reshape(-1, label_bytes + _CIFAR_PIXELS)
                labels = records[:, label_bytes - 1].copy()
                parts.append(samples(records[:, label_bytes:].copy(), labels, str(path)))
    except (tarfile.TarError, KeyError, ValueError, OverflowError) as error:
        raise DataError(
            f"the file is not the whole binary archive of CIFAR-{classes} ({error}); download it again", source=path
        ) from error
    return DataSet(parts[0], parts[1], image=(3, 32, 32), peak=255.0)


read_cifar10, read_cifar100 = (partial(_read_cifar, classes=classes) for classes in (10, 100))


def read_cifar_differences(labels: Path, training: Path, test: Path) -> DataSet:
    """Read a part of CIFAR whose pixels are stored losslessly as differences, which compress better.

    The files are an archive of the labels, and one array of shape (3, n, 32, 32) for each of training and test set. Its
    channels are green, red minus green, and blue minus green, each as differences of neighbours along rows and columns,
    modulo 256.
    """
    known = read_arrays(labels)
    parts = []
    for path in (training, test):
        stored, name = read_npy(path), f"{path.name.partition('_x')[0]}_y"
        if stored.dtype != np.uint8 or stored.ndim != 4 or stored.shape != (3, stored.shape[1], 32, 32):
            raise DataError(
                f"the array has type {stored.dtype} and shape {stored.shape}; expected uint8 (3, n, 32, 32)",
                source=path,
            )
        if name not in known:
            raise DataError(
                f"the file has no such array; found {', '.join(known) or 'nothing'}", source=labels, array=name
            )
        green, to_red, to_blue = stored.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
        pixels = np.stack([green + to_red, green, green + to_blue], axis=1)
        parts.append(samples(pixels.reshape(-1, _CIFAR_PIXELS), known[name], str(path)))
    return DataSet(parts[0], parts[1], image=(3, 32, 32), peak=255.0)


def read_mammography(path: Path) -> DataSet:
    """Read the mammography table, whose lines are six numbers and the class in quotes, ``-1`` or ``1``."""
    with opened(path) as stream:
        lines = stream.read().decode("utf-8", errors="replace").replace("'", "").split()
    try:
        table = np.array([line.split(",") for line in lines], np.float64)
    except ValueError as error:
        raise DataError(
            f"the file is not a table of numbers with commas between them ({error}); download it again", source=path
        ) from error
    if table.ndim != 2 or not np.isin(table[:, -1], (-1, 1)).all():
        raise DataError(
            "the class, which is the last number of a line, is not -1 or 1 in every line; download the file again",
            source=path,
        )
    return DataSet(samples(table[:, :-1].copy(), table[:, -1].astype(np.int64), str(path)))


def read_adult(training: Path, test: Path) -> DataSet:
    """Read UCI Adult: six numeric columns, then one 0/1 column for each category of the other eight.

    Categories are those of the training file, including ``?``, in alphabetical order within each column. The data set
    has 108 features. A category that occurs only in the test file becomes zeros.
    """
    tables = [(_adult_rows(path), path) for path in (training, test)]
    categorical = [column for column in range(_ADULT_COLUMNS - 1) if column not in _ADULT_NUMERIC]
    categories = {column: np.unique(tables[0][0][:, column]) for column in categorical}
    parts = []
    for rows, path in tables:
        try:
            numbers = rows[:, _ADULT_NUMERIC].astype(np.int32)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"a column of numbers has another value ({error}); download the file again", source=path
            ) from error
        flags = [rows[:, [column]] == known for column, known in categories.items()]
        features = np.hstack([numbers, *(flag.astype(np.int32) for flag in flags)])
        # Labels in the test file end with a full stop.
        parts.append(samples(features, np.char.rstrip(rows[:, -1], "."), str(path)))
    return DataSet(parts[0], parts[1])


def _adult_rows(path: Path) -> NDArray[np.str_]:
    rows = []
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            text = line.decode("utf-8", errors="replace").strip()
            if not text or text.startswith("|"):  # skip the comment at the start of the test file
                continue
            row = [field.strip() for field in text.split(",")]
            if len(row) != _ADULT_COLUMNS:
                raise DataError(
                    f"the line has {len(row)} fields; expected {_ADULT_COLUMNS}. Download the file again",
                    source=path,
                    row=number,
                )
            rows.append(row)
    if not rows:
        raise DataError(
            f"the file has no rows; expected lines of {_ADULT_COLUMNS} fields. Download the file again", source=path
        )
    return np.array(rows, dtype=str)


def read_covtype(path: Path) -> DataSet:
    """Read UCI Covertype: 54 integers and the class, 1 to 7."""
    from fenchel.common.data.columns import Roles, read_csv  # late import: Arrow takes 35 MB

    part = read_csv(path, Roles()).train
    return DataSet(samples(np.asarray(part.features).astype(np.int16), part.labels, str(path)))


def read_news20(path: Path) -> DataSet:
    """Read ``news20.binary`` of the LIBSVM collection."""
    return DataSet(read_libsvm(path, 1_355_191))


def read_rcv1(training: Path, test: Path) -> DataSet:
    """Read the training and the test file of ``rcv1.binary`` of the LIBSVM collection."""
    return joined(read_libsvm(training, RCV1_FEATURES), read_libsvm(test, RCV1_FEATURES), None, None, "rcv1")
