"""Sample identifiers, by which clients match their parts of the same sample.

Error messages contain rows instead of identifiers, because an identifier may be personal data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel.common.data.compressed import opened
from fenchel.common.data.limits import UNLIMITED, DataLimits
from fenchel.common.errors import DataError, Place


def checked(identifiers: Sequence[str], source: Path, *, column: str = "", array: str = "") -> tuple[str, ...]:
    """Check identifiers, and return them without surrounding spaces.

    Parameters
    ----------
    identifiers
        One identifier for each sample.
    source, column, array
        File, and column or array, for messages.

    Raises
    ------
    DataError
        If an identifier is empty, or occurs twice.
    """
    place: Place = {"source": source, "column": column, "array": array, "key": "--id"}
    stripped = tuple(each.strip() for each in identifiers)
    first_row: dict[str, int] = {}
    for row, identifier in enumerate(stripped, start=1):
        if not identifier:
            raise DataError("the sample identifier is empty; expected one in every row", **(place | {"row": row}))
        first = first_row.setdefault(identifier, row)
        if first != row:
            raise DataError(
                f"the sample identifier also occurs in row {first}; join the rows of a sample into one, or remove "
                "one of them",
                **(place | {"row": row}),
            )
    return stripped


def of_lines(path: Path, samples: int, data: Path, limits: DataLimits = UNLIMITED) -> tuple[str, ...]:
    """Read identifiers from a text file (UTF-8, plain or compressed), one per line in the order of the samples.

    Raise a ``DataError`` if the file is missing or is the data file, or unless it has one valid identifier per sample.
    """
    if not path.is_file():
        raise DataError(
            "the file does not exist; a LIBSVM file has no columns, so --id names a text file beside it, with one "
            "identifier a line",
            source=path,
            key="--id",
        )
    if path.resolve() == data.resolve():
        raise DataError(
            "--id names the data file itself; expected a file with one identifier a line", source=path, key="--id"
        )
    try:
        with opened(path, limits) as stream:
            text = stream.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start} is not UTF-8; expected text with one identifier a line", source=path, key="--id"
        ) from None
    if (lines := text.count("\n") + 1) != samples:
        raise DataError(
            f"the file has {lines} lines, but {data} has {samples} samples; expected one identifier a line, in the "
            "order of the samples",
            source=path,
            key="--id",
        )
    return checked(text.split("\n"), path)
