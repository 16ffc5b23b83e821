"""Data sets in memory, before preparation and partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, is_sparse
from fenchel.common.errors import DataError, Place

RawMatrix: TypeAlias = "NDArray[Any] | scipy.sparse.csr_array"
"""Features of samples as stored, shape (n, m): a dense array of any real dtype, such as uint8 for images, or CSR."""

RawLabels: TypeAlias = NDArray[Any]
"""Labels as stored, shape (n,): numbers or strings."""


@dataclass(frozen=True)
class Samples:
    """Samples with labels.

    Attributes
    ----------
    features
        Features as stored, shape (n, m), dense or CSR.
    labels
        Labels, shape (n,), numbers or strings.
    holders
        Holder of each sample, shape (n,), numbers or strings; ``None`` if the data does not name holders.
    """

    features: RawMatrix
    labels: RawLabels
    holders: NDArray[Any] | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def take(self, rows: Indices) -> Samples:
        """Return a copy of the samples at ``rows``, in that order."""
        holders = None if self.holders is None else self.holders[rows]
        return Samples(self.features[rows], self.labels[rows], holders)


@dataclass(frozen=True)
class DataSet:
    """Data set as published by its source.

    Attributes
    ----------
    train
        Training samples.
    test
        Published test samples with the same features; ``None`` if there are none.
    image
        Numbers of channels, rows and columns, if the features are the pixels of an image in that order.
    peak
        Largest possible value of a pixel (255 for bytes); ``None`` if it is unknown, or features are not pixels.
    columns
        Names of the features; ``None`` if the file format has no names.
    identifiers
        Identifiers of the training samples; ``None`` if the data has none.
    label
        Name of the label column, ``y`` in NumPy archives; ``None`` if the file gives no names to its columns.
    """

    train: Samples
    test: Samples | None = None
    image: tuple[int, int, int] | None = None
    peak: float | None = None
    columns: tuple[str, ...] | None = None
    identifiers: tuple[str, ...] | None = None
    label: str | None = None

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self.train.features.shape[1])


def samples(features: Any, labels: Any, where: str, array: str = "") -> Samples:
    """Check the arrays of one file, and return them as samples.

    Parameters
    ----------
    features
        Dense numbers or booleans, or CSR, shape (n, m).
    labels
        Numbers, booleans or strings, shape (n,) or (n, 1).
    where
        Name of the file, for messages.
    array
        Name of the array of features, for messages; empty if the file has no named arrays.

    Raises
    ------
    DataError
        If shapes or types differ from those above, a value is not finite, or there are no samples or no features.
    """
    place: Place = {"source": where, "array": array}
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if features.ndim != 2 or labels.ndim != 1 or features.shape[0] != labels.shape[0]:
        raise DataError(
            f"features of shape {features.shape} do not fit labels of shape {labels.shape}; expected (samples, "
            "features) and (samples,)",
            **place,
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise DataError(
            f"{features.shape[0]} samples with {features.shape[1]} features given; expected at least one of each",
            **place,
        )
    if features.dtype.kind not in "biuf":
        raise DataError(f"the features have type {features.dtype}; expected numbers", **place)
    if labels.dtype.kind not in "biufU":
        raise DataError(f"the labels have type {labels.dtype}; expected numbers or strings", **place)
    if found := _first_not_finite(features):
        raise DataError("a value is not finite; replace or remove such values", **(place | found))
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argmin(np.isfinite(labels)))
        raise DataError(f"the label of sample {row + 1} is {labels[row]}; expected a finite number", **place)
    if features.dtype.kind == "b":
        features = features.astype(np.uint8)
    return Samples(features, labels)


def _first_not_finite(features: RawMatrix) -> Place:
    """Return row and column of the first non-finite value, or only the column if features are sparse."""
    if is_sparse(features):
        bad = features.indices[~np.isfinite(features.data)]
        return {"column": str(bad[0] + 1)} if bad.size else {}
    if features.dtype.kind != "f" or np.isfinite(features).all():
        return {}
    row, column = np.argwhere(~np.isfinite(features))[0]
    return {"row": int(row) + 1, "column": str(column + 1)}


def flatten_images(array: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, int, int] | None]:
    """Flatten images to rows.

    Parameters
    ----------
    array
        Features, shape (n, m), or images, shape (n, rows, columns), (n, channels, rows, columns), or (n, rows, columns,
        channels) with at most four channels and more than four rows.

    Returns
    -------
    tuple[NDArray[Any], tuple[int, int, int] | None]
        Pixels of each image, channel after channel, shape (n, m), and the numbers of channels, rows and columns. An
        array of another shape is returned unchanged, with ``None``.
    """
    if array.ndim == 4 and array.shape[3] <= 4 < array.shape[1]:
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if array.ndim == 3:
        array = array[:, np.newaxis]
    if array.ndim != 4 or 0 in array.shape:
        return array, None
    channels, height, width = array.shape[1:]
    return array.reshape(array.shape[0], -1), (channels, height, width)


def widen(part: Samples, features: int) -> Samples:
    """Return sparse samples with zero columns appended, up to ``features`` columns, and dense samples unchanged."""
    if not is_sparse(part.features) or part.features.shape[1] >= features:
        return part
    csr = part.features
    return replace(
        part, features=scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=(csr.shape[0], features))
    )


def order_of(
    expected: Sequence[str], names: Sequence[str], reference: str, source: str | Path, array: str = ""
) -> list[int]:
    """Return the position of each expected name among the names of a table.

    Raise a ``DataError`` that names the first difference if the table lacks a column of ``reference``, or has another.
    """
    place: Place = {"source": source, "array": array}
    position = {name: number for number, name in enumerate(names)}
    known = set(expected)
    if (lacking := next((name for name in expected if name not in position), None)) is not None:
        raise DataError(
            f"{reference} has this column, but it is missing here; add or rename it", **(place | {"column": lacking})
        )
    if (other := next((name for name in names if name not in known), None)) is not None:
        raise DataError(f"{reference} has no column of this name; remove or rename it", **(place | {"column": other}))
    return [position[name] for name in expected]


def listed(names: Sequence[str]) -> str:
    """Return at most 20 names, separated by commas, for a message."""
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
