"""Tables that grow during a run and can be read at any moment.

Rows are appended as Arrow record batches to ``<name>.arrows``. A crash loses at most the batch that was being written.
When the run ends, the table becomes ``<name>.parquet``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fenchel.common.errors import CheckpointError, too_many_files
from fenchel.common.storage.store import too_many_files_error, writing

_DAMAGE = (OSError, ValueError, pa.ArrowException)
"""Exceptions that Arrow raises for a damaged file."""


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema. Columns that an older version did not write are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _amended(table: pa.Table, last: Mapping[str, float]) -> pa.Table:
    """Return a table with values replaced in its last row."""
    place = max(table.num_rows - 1, 0)
    amended = [{name: last.get(name, value) for name, value in row.items()} for row in table.slice(place).to_pylist()]
    return pa.concat_tables([table.slice(0, place), pa.Table.from_pylist(amended, table.schema)])


def _growing(path: Path) -> Path:
    return path.with_suffix(".arrows")


class TableLog:
    """Writer of one table.

    Parameters
    ----------
    schema
        Names and types of the columns.
    kept_rounds
        Last round of which a resumed run keeps rows. Later rounds will be repeated.
    """

    def __init__(self, path: Path, schema: pa.Schema, kept_rounds: int = 0) -> None:
        self._path = path
        self._schema = schema
        # The first array makes Arrow import pandas, if installed. A dummy array moves this import out of the rounds.
        pa.array([], pa.null())
        earlier = read(path) if kept_rounds and exists(path) else None
        # This temporary file replaces the growing file once the kept rows are written.
        fresh = path.with_suffix(".arrows.new")
        with writing(_growing(path)), ExitStack() as stack:
            self._file = fresh.open("wb")
            stack.callback(_close_after_failure, self._file)
            self._writer = pa.ipc.new_stream(self._file, schema)
            # Arrow writes the schema with the first batch, and a table without it cannot be read.
            self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))
            if earlier is not None:
                kept = earlier.filter(pc.less_equal(earlier["round"], kept_rounds))
                self._writer.write_table(_fitted(kept, schema))
            self._file.flush()
            fresh.replace(_growing(path))
            path.unlink(missing_ok=True)
            stack.pop_all()

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append rows, each in the order of the schema's columns."""
        if not rows:
            return
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        with writing(_growing(self._path)):
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self._file.flush()

    def finish(self, last: Mapping[str, float] | None = None) -> None:
        """Convert the table to its Parquet file. After a failure the method can be called again.

        Parameters
        ----------
        last
            Values that replace those of the last row, by column. Names without a column are ignored.
        """
        self.close()
        if not _growing(self._path).exists():
            return
        with writing(self._path):
            pq.write_table(_amended(read(self._path), last or {}), self._path)
            _growing(self._path).unlink()

    def close(self) -> None:
        """Stop writing, and keep the growing file for a resumed run."""
        if not self._file.closed:
            with writing(_growing(self._path)), self._file:
                self._writer.close()


def _close_after_failure(file: BinaryIO) -> None:
    """Close a file whose disk may be full, and ignore errors, because unwritten bytes are lost in any case."""
    with suppress(OSError):
        file.close()


def exists(path: Path) -> bool:
    """Return whether the table exists, finished or growing."""
    return path.exists() or _growing(path).exists()


def read(path: Path) -> pa.Table:
    """Read a table, finished or growing; raise ``CheckpointError`` if it is missing or damaged."""
    place = _growing(path) if _growing(path).exists() else path
    try:
        try:
            table = _read_growing(_growing(path))
        except FileNotFoundError:
            # Arrow's threads could prevent the process from exiting.
            table = pq.ParquetFile(path).read(use_threads=False)
        table.validate(full=True)  # unchecked values of a damaged table could be wrong or raise arbitrary errors
        return table
    except _DAMAGE as error:
        if too_many_files(error):
            raise too_many_files_error(place) from error
        raise CheckpointError(
            f"the table cannot be read ({error}). Restore it from a copy, or move it away: --resume then begins a new "
            "table, without the rows so far",
            source=place,
        ) from None


def _read_growing(path: Path) -> pa.Table:
    batches = []
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_stream(file)
        while True:
            try:
                batches.append(reader.read_next_batch())
            except (StopIteration, *_DAMAGE):
                break  # end of the file, or a batch truncated by a crash
        return pa.Table.from_batches(batches, reader.schema)
