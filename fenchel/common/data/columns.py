"""Readers of tables with named columns, CSV and Parquet."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fenchel.common.data.compressed import missing, opened
from fenchel.common.data.identifiers import checked
from fenchel.common.data.limits import UNLIMITED, DataLimits
from fenchel.common.data.samples import DataSet, listed, samples
from fenchel.common.errors import DataError

_DELIMITERS = ",;\t"
_INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")
_EMPTY = tuple(pyarrow.csv.ConvertOptions().null_values)
_MISSING = {*(text.lower() for text in _EMPTY), "?", "-", "--", ".", "none", "missing", "unknown"}
"""Texts that stand for a missing value in a CSV file: for Arrow, and those in lower case that name no column."""
_PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_SAVE_AS_UTF8 = "save the file as UTF-8 (in Excel: CSV UTF-8)"
_PIECE = 1 << 20
_VALUE_BYTES, _CHARACTER_BYTES = 8, 4
"""Bytes of a number, and of a character of a string, in an array."""
_COLUMN_BYTES = 4096
"""Smallest memory of a column in bytes while a CSV file is read."""
_HEADER_SHARE = 64
"""Bound on the memory for parsing a header, divided by its length."""


@dataclass(frozen=True)
class Roles:
    """Names of the columns of a table that are no features.

    Attributes
    ----------
    label
        Column of the label; ``None`` for ``usual_label``, the column ``label`` or, without these, the last column.
    usual_label
        Column of the label in other files of the same set, which this file may not have; ``None`` for none.
    identifier
        Column of sample identifiers, which are read as text; ``None`` for none.
    holder
        Column with the holder of each sample; ``None`` for none.
    """

    label: str | None = None
    usual_label: str | None = None
    identifier: str | None = None
    holder: str | None = None

    def label_among(self, names: list[str]) -> str:
        """Return the name of the label column; empty if there are no columns."""
        if self.label is not None:
            return self.label
        likely = [name for name in (self.usual_label, "label") if name is not None and name in names]
        return (likely or names[-1:] or [""])[0]


def read_csv(path: Path, roles: Roles, limits: DataLimits = UNLIMITED) -> DataSet:
    """Read a CSV file, plain or compressed, separated by commas, semicolons or tabs.

    The first line is a header if it has no number, or the name of the label, identifier or holder column, or the field
    ``label``. If it has numbers and other text, it is a header if a text stands above a column of numbers, and a sample
    if a text occurs again in its column, as classes do. Without a header, the columns are named ``column 1``,
    ``column 2`` and so on.

    Parameters
    ----------
    path
        Path of the file.
    roles
        Columns that are no features.
    limits
        Limits on the size of the text and of the table.

    Raises
    ------
    DataError
        If the file is not a table of numbers with such columns or not UTF-8, exceeds the limits, or its first line may
        be a header or a sample.
    """
    with opened(path, limits) as stream:
        line = stream.readline(limits.bytes // _HEADER_SHARE + 1)
        limits.require_bytes(len(line) * _HEADER_SHARE, path)
        try:
            first = line.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise DataError(f"the first line is not UTF-8; {_SAVE_AS_UTF8}", source=path) from None
        delimiter = max(_DELIMITERS, key=first.count)
        try:
            fields = [field.strip() for field in next(csv.reader([first], delimiter=delimiter), [])]
        except csv.Error as error:
            raise DataError(
                f"the first line cannot be read as CSV ({error}); check the quotes and the delimiter", source=path
            ) from error
        limits.require_bytes(len(fields) * _COLUMN_BYTES, path)
        if not any(fields):
            raise DataError("the first line is empty; expected column names or values", source=path)
        limits.require_bytes(_rows(stream) * len(fields) * _VALUE_BYTES, path)
        header = _is_header(fields, {*astuple(roles), "label"}, stream, delimiter, path)
        names = fields if header else _numbered(fields)
        refuse_repeated(names, path)
        # Identifiers and holders are read as text: as numbers, 007 and 7 would be equal.
        texts = [name for name in (roles.identifier, roles.holder) if name is not None]
        target = roles.label_among(names)
        try:
            table = _parsed(stream, names, delimiter, texts, skip=int(header))
            if target in names and pa.types.is_boolean(table.column(target).type):
                # Classes keep the names that the file gives them: TRUE and FALSE, not 1 and 0.
                table = _parsed(stream, names, delimiter, [*texts, target], skip=int(header))
        except pa.ArrowException as error:
            raise DataError(
                f"the file cannot be read as a CSV table of {len(names)} columns: {error}", source=path
            ) from error
    table = _with_texts(table, target, path)
    if roles.holder in names:
        spaceless = _without_spaces(table.column(roles.holder))
        table = table.set_column(names.index(roles.holder), roles.holder, spaceless)
    dataset = split_table(table, roles, path, limits)
    return dataset if header else replace(dataset, label=None)


def _parsed(
    stream: BinaryIO, names: list[str], delimiter: str, texts: list[str], *, skip: int, only: list[str] | None = None
) -> Any:
    """Parse a CSV file as an Arrow table, with the columns ``texts`` as bytes.

    ``only`` restricts it to some columns. Raise an ``ArrowException`` if the lines are no table.
    """
    stream.seek(0)
    return pyarrow.csv.read_csv(
        stream,
        # Threads of Arrow that have read from a Python object can prevent the process from exiting.
        read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=skip, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: pa.binary() for name in texts}, include_columns=only
        ),
    )


def _numbered(fields: list[str]) -> list[str]:
    """Return names for the columns of a file without a header."""
    return [f"column {number}" for number in range(1, len(fields) + 1)]


def _is_header(fields: list[str], known: set[str | None], stream: BinaryIO, delimiter: str, path: Path) -> bool:
    """Return whether the first line names the columns, or raise a ``DataError`` if it may be a sample as well."""
    numbers = sum(map(_is_number, fields))
    if numbers == 0 or (numbers < len(fields) and known & set(fields)):
        return True
    names = _numbered(fields)
    texts = [
        name
        for name, field in zip(names, fields, strict=True)
        if not _is_number(field) and field.lower() not in _MISSING
    ]
    if not texts or known & set(names):
        _refuse_numbered(fields, path)
        return False
    try:
        rest = _parsed(stream, names, delimiter, texts, skip=1, only=texts)
    except pa.ArrowException:  # a single line, or lines that cannot be read in any case
        return False
    named, sampled, unclear = False, False, ""
    for name in texts:
        field, column = fields[names.index(name)], rest.column(name)
        values = {value.decode(errors="replace").strip() for value in column.unique().to_pylist()}
        present = [value for value in values if value.lower() not in _MISSING]
        if present and all(map(_is_number, present)):
            named = True
        elif field in values:
            sampled = True
        elif len(values) < len(column):  # values repeat as classes do, but not this one
            unclear = unclear or field
    if named and not sampled:
        return True
    _refuse_numbered(fields, path)
    if named or (unclear and not sampled):
        raise DataError(
            "the first line mixes numbers and texts, and may be a header or a sample. Name the label's column "
            "(data.label, --label), by its text in the first line if that is a header, and otherwise by its number, "
            f'such as "{names[-1]}"',
            source=path,
            row=1,
            column=unclear,
        )
    return False


def _with_texts(table: Any, label: str, path: Path) -> Any:
    """Return a table with text in place of bytes, and null in place of text that stands for a missing value.

    In the column of the label, only the empty text does: ``NA`` may be a class.
    """
    for position, name in enumerate(table.column_names):
        column = table.column(position)
        if pa.types.is_binary(column.type):
            column = _decoded(column, name, path)
        if _is_word(column.type):
            spellings = pa.array([""] if name == label else _EMPTY)
            absent = pyarrow.compute.is_in(column, value_set=spellings)
            column = pyarrow.compute.if_else(absent, pa.scalar(None, column.type), column)
            table = table.set_column(position, name, column)
    return table


def _decoded(column: Any, name: str, path: Path) -> Any:
    """Return a column of bytes as text, or raise a ``DataError`` if it is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, value in enumerate(column.to_pylist(), start=1):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise DataError(f"the text is not UTF-8; {_SAVE_AS_UTF8}", source=path, column=name, row=row) from None
        raise


def _without_spaces(column: Any) -> Any:
    """Return texts without surrounding spaces, as integers if the same numbers have the same text."""
    texts = pyarrow.compute.utf8_trim_whitespace(column)
    texts = pyarrow.compute.if_else(pyarrow.compute.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    plain = pyarrow.compute.match_substring_regex(texts, _PLAIN_INTEGER)
    return texts.cast(pa.int64()) if pyarrow.compute.all(plain).as_py() else texts


def _refuse_numbered(first: list[str], path: Path) -> None:
    """Reject a header of column numbers, which pandas writes for columns without names."""
    numbers = [field for field in first if _is_number(field)]
    if len(numbers) > 2 and numbers == [str(column) for column in range(len(numbers))]:
        raise DataError(
            "the first line has only column numbers (0, 1, 2, ...), which pandas writes for columns without names, and "
            "would be read as a sample. Name the columns, or write the file with header=False",
            source=path,
        )


def _rows(stream: BinaryIO) -> int:
    """Count the remaining lines, with any kind of newline."""
    ends = Counter[bytes]()
    while piece := stream.read(_PIECE):
        ends.update({end: piece.count(end) for end in (b"\n", b"\r")})
    return max(ends.values(), default=0)


def read_parquet(path: Path, roles: Roles, limits: DataLimits = UNLIMITED) -> DataSet:
    """Read a Parquet file.

    Parameters
    ----------
    path
        Path of the file.
    roles
        Columns that are no features.
    limits
        Limits on the size given by the metadata, and on the table.

    Raises
    ------
    DataError
        If the file is not a table of numbers with such columns, or exceeds the limits.
    """
    if not path.is_file():
        raise missing(path)
    try:
        # read_table would interpret a path such as year=2024/x.parquet as a partitioned data set.
        file = pyarrow.parquet.ParquetFile(path)
        words = [field.name for field in file.schema_arrow if _is_word(field.type)]
        _require_modest(file, path, limits)
        # Dictionary encoding stores each repeated value once.
        table = pyarrow.parquet.ParquetFile(path, read_dictionary=words).read(use_threads=False)
        table.validate(full=True)  # unchecked values of a damaged table could be wrong or raise arbitrary errors
    except (pa.ArrowException, OSError, ValueError) as error:  # a column name that is not UTF-8 raises ValueError
        raise DataError(f"the file cannot be read as Parquet: {error}", source=path) from error
    refuse_repeated(table.column_names, path)
    return split_table(table, roles, path, limits)


def _require_modest(file: Any, path: Path, limits: DataLimits) -> None:
    """Reject a Parquet file that declares more data than the limits allow, or columns of nested or binary types."""
    for field in file.schema_arrow:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not (pa.types.is_primitive(kind) or pa.types.is_null(kind) or _is_word(kind)):
            raise DataError(f"the column has type {kind}; expected numbers or strings", source=path, column=field.name)
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    columns = [group.column(column) for group in groups for column in range(group.num_columns)]
    limits.require_bytes(sum(column.total_uncompressed_size for column in columns), path)
    limits.require_bytes(sum(column.num_values for column in columns) * _VALUE_BYTES, path)


def split_table(table: Any, roles: Roles, path: Path, limits: DataLimits = UNLIMITED) -> DataSet:
    """Split an Arrow table into features, labels, sample identifiers and holders.

    Returns
    -------
    DataSet
        Data set with labels as stored, and dense features, in float32 if all feature columns are, otherwise in float64.

    Raises
    ------
    DataError
        If a column is missing, a feature is not a finite number, or the table exceeds the limits or has no rows.
    """
    limits.require_bytes(table.num_rows * table.num_columns * _VALUE_BYTES, path)
    _refuse_index(table, path)
    table, ids = _set_apart(table, roles.identifier, roles, path, "--id", limits)
    column = roles.identifier or ""
    identifiers = None if ids is None else checked([str(each) for each in ids.tolist()], path, column=column)
    table, holders = _set_apart(table, roles.holder, roles, path, "data.partition.column", limits)
    names = table.column_names
    label = roles.label_among(names)
    if label not in names:
        raise DataError(
            f"the table has no column of this name for the label; the columns are {listed(names)}",
            source=path,
            column=label,
        )
    if table.num_rows == 0 or len(names) == 1:
        raise DataError(
            f"the table has {table.num_rows} rows and {len(names) - 1} feature columns; expected at least one of each",
            source=path,
        )
    columns = [name for name in names if name != label]
    train = samples(
        features_of(table, columns, path), _values(table.column(label), label, path, limits, fractions=True), str(path)
    )
    return DataSet(replace(train, holders=holders), columns=tuple(columns), identifiers=identifiers, label=label)


def _refuse_index(table: Any, path: Path) -> None:
    """Reject a first column of row numbers, which pandas writes for its index."""
    if not (table.num_rows and table.num_columns and table.column_names[0] in _INDEX_NAMES):
        return
    first = table.column(0)
    numbers = pa.types.is_integer(first.type) and not first.null_count
    if numbers and np.array_equal(first.to_numpy(), np.arange(table.num_rows)):
        raise DataError(
            "the first column has no name and numbers the rows, as an index of pandas, and would be read as a "
            "feature. Write the file with index=False, or name the column",
            source=path,
        )


def features_of(table: Any, names: Sequence[str], path: Path) -> NDArray[Any]:
    """Return columns of a table as an array, shape (n, m), in float32 if all of them are, otherwise in float64.

    Raise a ``DataError`` if a value is not a finite number, with the first such value of each column.
    """
    wrong: list[DataError] = []
    single = all(pa.types.is_float32(table.schema.field(name).type) for name in names)
    features = np.empty((table.num_rows, len(names)), np.float32 if single else np.float64)
    for position, name in enumerate(names):
        try:
            features[:, position] = numbers_of(table.column(name), name, path)
        except DataError as error:
            wrong.append(error)
    if wrong:
        first, *further = wrong
        if further:
            places = listed([f"{error.column!r} (row {error.row})" for error in further])
            first.problem += f". Further columns with wrong values: {places}"
        raise first
    return features


def numbers_of(column: Any, name: str, path: Path) -> NDArray[Any]:
    """Return a column as float64, shape (n,), or raise a ``DataError`` if a value is not a finite number."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        row, value = _first_not_number(column)
        found = "an empty value" if value is None else repr(value)
        raise DataError(
            f"{found} is not a number; expected numbers only (encode categories as one 0/1 column each, and name "
            "identifiers with --id)",
            source=path,
            column=name,
            row=row,
        )
    values: NDArray[Any] = column.to_numpy().astype(np.float64)
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        found = "an empty value" if column[row].as_py() is None else str(values[row])
        raise DataError(
            f"the cell has {found}; expected a finite number in every row", source=path, column=name, row=row + 1
        )
    return values


def _first_not_number(column: Any) -> tuple[int, Any]:
    """Return the row, counted from 1, and the content of the first value that is not a number."""
    for row, value in enumerate(column, start=1):
        content = value.as_py()
        if content is None or not _is_number(str(content)):
            return row, content
    return 1, column[0].as_py()


def _set_apart(
    table: Any, name: str | None, roles: Roles, path: Path, key: str, limits: DataLimits
) -> tuple[Any, NDArray[Any] | None]:
    """Return a table without the column ``name``, and its strings or integers. Without a name, split off nothing."""
    if name is None:
        return table, None
    if name == roles.label:
        raise DataError("the column is the label as well; name another column", source=path, column=name, key=key)
    if name not in table.column_names:
        raise DataError(
            f"the table has no column of this name; the columns are {listed(table.column_names)}",
            source=path,
            column=name,
            key=key,
        )
    return table.drop_columns([name]), _values(table.column(name), name, path, limits, key=key)


def _values(
    column: Any, name: str, path: Path, limits: DataLimits, *, key: str = "", fractions: bool = False
) -> NDArray[Any]:
    """Return a column of strings or integers or, with ``fractions``, any numbers, or raise a ``DataError``."""
    if column.null_count:
        row = column.is_null().index(True).as_py() + 1
        raise DataError("the value is empty; expected a value in every row", source=path, column=name, row=row, key=key)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if _is_word(kind):
        distinct = column.unique()
        words = distinct.dictionary if pa.types.is_dictionary(column.type) else distinct
        longest = pyarrow.compute.max(pyarrow.compute.utf8_length(words)).as_py() or 0
        limits.require_bytes(len(column) * longest * _CHARACTER_BYTES, path)
    if pa.types.is_dictionary(column.type):
        column = column.cast(kind)
    if _is_word(kind):
        return np.array(column.to_pylist(), dtype=str)
    if pa.types.is_integer(kind) or (fractions and (pa.types.is_floating(kind) or pa.types.is_boolean(kind))):
        numbers: NDArray[Any] = column.to_numpy()
        return numbers
    numbers_wanted = "numbers" if fractions else "whole numbers"
    raise DataError(
        f"the column has type {kind}; expected strings or {numbers_wanted}", source=path, column=name, key=key
    )


def _is_word(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def refuse_repeated(names: list[str], path: Path) -> None:
    """Raise a ``DataError`` if two columns have the same name."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError("two columns have this name; give each its own", source=path, column=repeated)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
