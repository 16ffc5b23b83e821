"""From the public files of each named data set to a :class:`DataSet`.

Every function takes the files by the name that the catalogue gives them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.columns import read_csv
from common.data.compressed import opened
from common.data.files import read_files
from common.data.libsvm import read_libsvm
from common.data.npz import joined
from common.data.samples import DataSet, Samples, samples
from common.errors import DataError

Files = Mapping[str, Path]
"""Where each public file lies, by its public name."""

_ADULT_COLUMNS = 15
_ADULT_NUMERIC = (0, 2, 4, 10, 11, 12)
_CIFAR_RECORD = 1 + 3 * 32 * 32
_NEWS20_FEATURES = 1_355_191
_RCV1_FEATURES = 47_236


def read_digits(_: Files) -> DataSet:
    """Load scikit-learn's 8x8 digits; a full pixel is 16."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return DataSet(Samples(pixels.astype(np.uint8), labels), image=(1, 8, 8), peak=16.0)


def read_breast_cancer(_: Files) -> DataSet:
    """Load scikit-learn's breast cancer data; labels are the words ``benign`` and ``malignant``."""
    from sklearn.datasets import load_breast_cancer

    loaded = load_breast_cancer()
    return DataSet(Samples(loaded.data, loaded.target_names[loaded.target].astype(str)))


def read_idx_images(files: Files) -> DataSet:
    """Read the four IDX files of MNIST and of those that follow its form."""
    return read_files(list(files.values()))


def read_cifar10(files: Files) -> DataSet:
    """Read the binary archive of CIFAR-10: a label byte and three planes of 32x32 bytes for each image."""
    (path,) = files.values()
    parts: dict[bool, list[NDArray[Any]]] = {False: [], True: []}
    try:
        with opened(path) as stream, tarfile.open(fileobj=stream) as archive:
            for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
                member = archive.extractfile(f"cifar-10-batches-bin/{name}")
                content = member.read() if member else b""
                parts[name == "test_batch.bin"].append(
                    np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
                )
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise DataError(f"{path}: not the binary archive of CIFAR-10: {error}") from error
    train, test = (np.concatenate(parts[is_test]) for is_test in (False, True))
    return DataSet(
        samples(train[:, 1:].copy(), train[:, 0].copy(), str(path)),
        samples(test[:, 1:].copy(), test[:, 0].copy(), str(path)),
        image=(3, 32, 32),
        peak=255.0,
    )


def read_adult(files: Files) -> DataSet:
    """Read UCI Adult: six numeric columns, then one 0/1 column for each category of the other eight.

    Categories are those of the training file, in alphabetical order within each column, ``?`` among them:
    108 features. A category that only the test file has becomes zeros.
    """
    train, test = (_adult_rows(path) for path in files.values())
    categorical = [column for column in range(_ADULT_COLUMNS - 1) if column not in _ADULT_NUMERIC]
    categories = {column: np.unique(train[:, column]) for column in categorical}
    parts = []
    for rows, path in zip((train, test), files.values(), strict=True):
        try:
            numbers = rows[:, _ADULT_NUMERIC].astype(np.int32)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}: a numeric column holds something else: {error}") from error
        flags = [rows[:, [column]] == known for column, known in categories.items()]
        features = np.hstack([numbers, *(flag.astype(np.int32) for flag in flags)])
        # The test file ends its labels with a full stop.
        parts.append(samples(features, np.char.rstrip(rows[:, -1], "."), str(path)))
    return DataSet(parts[0], parts[1])


def _adult_rows(path: Path) -> NDArray[np.str_]:
    rows = []
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            text = line.decode("utf-8", errors="replace").strip()
            if not text or text.startswith("|"):  # the test file opens with a comment
                continue
            row = [field.strip() for field in text.split(",")]
            if len(row) != _ADULT_COLUMNS:
                raise DataError(f"{path}, line {number}: {len(row)} fields; expected {_ADULT_COLUMNS}")
            rows.append(row)
    if not rows:
        raise DataError(f"{path}: no rows; expected lines of {_ADULT_COLUMNS} fields")
    return np.array(rows, dtype=str)


def read_covtype(files: Files) -> DataSet:
    """Read UCI Covertype: 54 integers and the class, 1 to 7."""
    (path,) = files.values()
    part = read_csv(path).train
    return DataSet(samples(np.asarray(part.features).astype(np.int16), part.labels, str(path)))


def read_news20(files: Files) -> DataSet:
    """Read ``news20.binary`` of the LIBSVM collection."""
    (path,) = files.values()
    return DataSet(read_libsvm(path, _NEWS20_FEATURES))


def read_rcv1(files: Files) -> DataSet:
    """Read ``rcv1.binary`` of the LIBSVM collection, training and test file."""
    train, test = (read_libsvm(path, _RCV1_FEATURES) for path in files.values())
    return joined(train, test, None, None, "rcv1")
