"""Conversion of data in memory to files.

Client processes read files. Data from Python is therefore written to a file, is checked like any other file, and
remains available when a killed run is resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import is_sparse
from fenchel.common.data.columns import Roles, features_of, numbers_of, refuse_repeated, split_table
from fenchel.common.data.npz import FEATURES, NAMES, TEST_FEATURES, csr_arrays
from fenchel.common.data.samples import RawMatrix, flatten_images, listed, order_of
from fenchel.common.errors import DataError

ACCEPTED = (
    "a path; (X, y) of arrays, sparse matrices or tensors; a mapping of arrays, such as X, y, X_test and y_test; a "
    "DataFrame or another table of Arrow; a torch Dataset or DataLoader; a Hugging Face Dataset or DatasetDict"
)
"""Accepted kinds of data, for messages and documentation."""

_TEST = ("test", "validation")
_LABEL = "label"


@dataclass(frozen=True)
class Table:
    """Table with named columns."""

    columns: pa.Table
    suffix = ".parquet"

    def write(self, path: Path) -> None:
        """Write a Parquet file."""
        pyarrow.parquet.write_table(self.columns, path)

    def check(self, label: str | None, identifier: str | None) -> None:
        """Raise a ``DataError`` unless the columns are a label, an optional identifier, and features of numbers."""
        split_table(self.columns, Roles(label=label, identifier=identifier), Path("data"))


@dataclass(frozen=True)
class Arrays:
    """Named arrays in the form of :func:`fenchel.common.data.npz.read_npz`."""

    arrays: Mapping[str, NDArray[Any]]
    suffix = ".npz"

    def write(self, path: Path) -> None:
        """Write a NumPy archive."""
        np.savez(path, **self.arrays)  # type: ignore[arg-type]  # the stubs allow an array for allow_pickle

    def check(self, label: str | None, identifier: str | None) -> None:
        """Accept the arrays, which are checked when the file is read."""


def in_memory(data: Any, label: str | None = None) -> Table | Arrays:
    """Convert a data set of Python objects to a form that can be written to a file.

    Parameters
    ----------
    data
        Any kind of data in :data:`ACCEPTED` but a path.
    label
        Name of the label column of a Hugging Face data set that is converted to arrays; ``None`` for the column
        ``label`` or, without one, the last column. A ``Table`` keeps all columns.

    Raises
    ------
    DataError
        If the data is of another kind, or has values that cannot be written.
    """
    if _is_a(data, "datasets", "Dataset"):
        return _hugging_face(data, label)
    if isinstance(data, Mapping):
        parts = {name: part for name, part in data.items() if _is_a(part, "datasets", "Dataset")}
        if parts:
            return _published(parts, label)
        for name in FEATURES:
            if _is_table(data.get(name)):
                _refuse_label(_table(data[name]))
        return Arrays(_named(data))
    if isinstance(data, tuple) and len(data) == 2:
        return _pair(*data)
    if hasattr(data, "__arrow_c_stream__"):
        return Table(_table(data))
    if _is_a(data, "torch.utils.data", "DataLoader"):
        data = data.dataset  # the loader's data set, as samples are read one by one and not in batches
    if _is_a(data, "torch.utils.data", "Dataset"):
        return Arrays(_stacked(data))
    raise DataError(f"{_kind(data)} given; expected {ACCEPTED}", source="data")


def _pair(features: Any, labels: Any) -> Table | Arrays:
    """Combine features and labels, or raise a ``DataError`` unless there is one label per sample."""
    if not hasattr(features, "__arrow_c_stream__"):
        arrays = _named({"X": features, "y": labels})
        _require_labels(arrays["y"], arrays["shape"][0] if "shape" in arrays else np.size(arrays["X"], 0))
        return Arrays(arrays)
    table = _table(features)
    _refuse_label(table)
    found = _array(labels, "y")
    _require_labels(found, table.num_rows)
    return Table(table.append_column(_LABEL, pa.array(found.reshape(-1))))


def _refuse_label(table: pa.Table) -> None:
    if _LABEL in table.column_names:
        raise DataError(
            "the features have a column of the label's name, but labels are given as well; give the table alone, "
            "or rename the column",
            source="data",
            column=_LABEL,
        )


def _require_labels(labels: NDArray[Any], rows: int) -> None:
    if labels.shape not in ((rows,), (rows, 1)):
        raise DataError(
            f"the labels have shape {labels.shape}, but there are {rows} samples; expected one label for each",
            source="data",
        )


def features_in_memory(data: Any, columns: Sequence[str] | None) -> tuple[RawMatrix, bool]:
    """Return the features of samples without labels, shape (n, m), and whether they are images.

    Parameters
    ----------
    data
        Features of samples.
    columns
        Names of the features in order. Other columns of a table are ignored. ``None`` takes all columns in their order.

    Raises
    ------
    DataError
        If a column is missing, a value is not a finite number, or an array has another shape.
    """
    if hasattr(data, "__arrow_c_stream__"):
        table = _table(data)
        names = table.column_names if columns is None else columns
        lacking = [name for name in names if name not in table.column_names]
        if lacking:
            raise DataError(
                f"the columns {listed(lacking)} are missing, but the model needs them; add them to the table",
                source="X",
            )
        pieces = [numbers_of(table.column(name), name, Path("X")) for name in names]
        return np.stack(pieces, axis=1) if pieces else np.empty((table.num_rows, 0)), False
    rows: RawMatrix
    sparse = scipy.sparse.issparse(data)
    rows, image = (scipy.sparse.csr_array(data), None) if sparse else flatten_images(_array(data, "X"))
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise DataError(
            f"the features have shape {rows.shape} and type {rows.dtype}; expected numbers of shape (samples, "
            "features), or images",
            source="X",
        )
    values = rows.data if is_sparse(rows) else rows
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError("a value is not finite; replace or remove such values", source="X")
    return rows, image is not None


def _is_table(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") and getattr(data, "ndim", 2) == 2


def _table(data: Any) -> pa.Table:
    """Return a table of any library as an Arrow table, without the index of pandas."""
    try:
        if _is_a(data, "pandas", "DataFrame"):
            table = pa.Table.from_pandas(data, preserve_index=False)
        else:
            table = data if isinstance(data, pa.Table) else pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if _is_a(data, "pandas", "DataFrame"):
            for position, name in enumerate(data.columns):
                _refuse_mixed(data.iloc[:, position].reset_index(drop=True).dropna(), str(name))
        raise DataError(
            f"this {_kind(data)} cannot be converted to an Arrow table ({error}); use columns of numbers and strings",
            source="data",
        ) from None
    refuse_repeated(table.column_names, Path("data"))
    return table


def _refuse_mixed(values: Any, name: str) -> None:
    """Raise a ``DataError`` if some values of a column, by their rows from 0, are texts and others are not."""
    texts = [row for row, value in values.items() if isinstance(value, str)]
    others = [row for row, value in values.items() if not isinstance(value, str)]
    if texts and others:
        row = min(texts, others, key=len)[0]
        raise DataError(
            f"{values[row]!r} is {'a text' if isinstance(values[row], str) else 'no text'}, unlike other values of the "
            "column; expected numbers only, or texts only",
            source="data",
            column=name,
            row=row + 1,
        )


def _named(data: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    """Return arrays by name, with sparse features as the arrays of a CSR matrix.

    If the training features are a table, its column names become an array as well, and a table of test features gets
    the same order. Raise a ``DataError`` if that table has other columns.
    """
    arrays: dict[str, NDArray[Any]] = {}
    features = next((name for name in FEATURES if name in data), None)
    named = features is not None and _is_table(data[features])
    columns = _table(data[features]).column_names if named else []
    for name, value in data.items():
        if named and name in (features, *TEST_FEATURES) and _is_table(value):
            table = _table(value)
            order_of(columns, table.column_names, str(features), "data", str(name))
            arrays[name] = features_of(table, columns, Path(name))
        elif scipy.sparse.issparse(value):
            arrays |= csr_arrays(value, "test_" if "test" in str(name).lower() else "")
        else:
            arrays[str(name)] = _array(value, str(name))
    if named:
        arrays[NAMES] = np.array(columns, dtype=str)
    return arrays


def _array(value: Any, name: str) -> NDArray[Any]:
    """Return numbers or strings as an array without Python objects, or raise a ``DataError``."""
    _refuse_masked(value, name)
    if hasattr(value, "detach"):  # a torch tensor, possibly on a GPU
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat):
            array = array.astype(str)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"this {_kind(value)} cannot be converted to an array of numbers: {error}", source="data", array=name
        ) from None
    if array.dtype.kind not in "biufU":
        raise DataError(
            f"this {_kind(value)} holds values of type {array.dtype}; expected numbers, or strings as labels",
            source="data",
            array=name,
        )
    return array


def _refuse_masked(value: Any, name: str) -> None:
    """Reject masked values of NumPy, whose masks a conversion to an array would drop."""
    for part in value if isinstance(value, list | tuple) else (value,):
        if np.ma.is_masked(part):
            raise DataError(
                f"{np.count_nonzero(np.ma.getmaskarray(part))} values are masked, so they are missing; replace or "
                "remove such values",
                source="data",
                array=name,
            )


def _is_a(data: Any, module: str, kind: str) -> bool:
    """Return whether data is of a class of another library, which is not imported for the answer."""
    found = sys.modules.get(module)  # data can only be of a library's type if that has been imported
    return found is not None and isinstance(data, getattr(found, kind))


def _stacked(data: Iterable[Any]) -> dict[str, NDArray[Any]]:
    """Return a torch ``Dataset`` as arrays, or raise a ``DataError`` unless samples are (features, label) pairs."""
    features, labels = [], []
    # Iteration over a map-style Dataset ends only with an IndexError, which some classes never raise.
    each = (data[row] for row in range(len(data))) if hasattr(data, "__len__") else iter(data)  # type: ignore[index, arg-type]
    for sample in each:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(
                f"a sample of this {_kind(data)} is a {_kind(sample)}; expected a pair of features and a label",
                source="data",
            )
        features.append(_array(sample[0], "X"))
        labels.append(_array(sample[1], "y"))
    shapes = {array.shape for array in features}
    if len(shapes) != 1:
        found = ", ".join(map(str, sorted(shapes)[:3])) or "none, as there are no samples"
        raise DataError(
            f"the features of the samples have different shapes ({found}); expected one shape", source="data"
        )
    return {"X": np.stack(features), "y": np.stack(labels)}


def _hugging_face(data: Any, label: str | None) -> Table | Arrays:
    """Convert a Hugging Face ``Dataset`` to a table, or to arrays if its features are images or lists."""
    table = data.with_format("arrow")[:]
    plain = all(pa.types.is_primitive(kind) or pa.types.is_string(kind) for kind in table.schema.types)
    return Table(table) if plain else Arrays(_image_and_label(data, label))


def _image_and_label(data: Any, label: str | None) -> dict[str, NDArray[Any]]:
    """Return the feature column and the labels of a Hugging Face ``Dataset`` as arrays."""
    names = list(data.column_names)
    label = label or (_LABEL if _LABEL in names else names[-1])
    features = [name for name in names if name != label]
    if label not in names or len(features) != 1:
        raise DataError(
            f"the data set has the columns {listed(names)}, and the label is {label!r}; expected the label's "
            "column and one other column, of images or lists (remove further ones with remove_columns)",
            source="data",
            column=label,
        )
    arrays = data.with_format("numpy")
    return {"X": _array(arrays[features[0]][:], features[0]), "y": _array(arrays[label][:], label)}


def _published(parts: Mapping[str, Any], label: str | None) -> Arrays:
    """Convert the training and test parts of a Hugging Face ``DatasetDict`` to arrays."""
    test = next((name for name in _TEST if name in parts), None)
    if "train" not in parts:
        raise DataError(
            f'the data set has the splits {listed(list(parts))}; rename the training split to "train" and a test split '
            'to "test"',
            source="data",
        )
    names = list(parts["train"].column_names)
    label = label or (_LABEL if _LABEL in names else names[-1])
    given = _features_and_label(parts["train"], label)
    if test is not None:
        given |= {f"{name}_test": part for name, part in _features_and_label(parts[test], label).items()}
    return Arrays(_named(given))


def _features_and_label(part: Any, label: str) -> dict[str, Any]:
    """Return one part of a ``DatasetDict`` as a table or array of features, and an array of labels."""
    found = _hugging_face(part, label)
    if isinstance(found, Arrays):
        return dict(found.arrays)
    names = found.columns.column_names
    if label not in names:
        raise DataError(
            f"the data set has no column of this name; the columns are {listed(names)}", source="data", column=label
        )
    labels = _array(found.columns[label].to_numpy(), label)
    return {"X": found.columns.drop_columns([label]), "y": labels}


def _kind(data: Any) -> str:
    """Return the qualified name of a type, for a message."""
    return type(data).__qualname__
