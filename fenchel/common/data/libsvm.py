"""Reader of the LIBSVM format: one sample per line, ``label index:value index:value ...``, indices from 1 or 0."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import scipy

from fenchel.common.data.compressed import opened
from fenchel.common.data.limits import UNLIMITED, DataLimits
from fenchel.common.data.samples import Samples, samples
from fenchel.common.errors import DataError

_MAX_INDEX = 2**31 - 1
_SHOWN = 40

_PAIR_BYTES, _ROW_BYTES = 12, 16
"""Bytes of a value with its index, and of a label with its row pointer."""
_LINE_SHARE = 64
"""Bound on the memory for parsing a line, divided by its length."""


def read_libsvm(
    path: Path, features: int | None = None, limits: DataLimits = UNLIMITED, first: int | None = None
) -> Samples:
    """Read a LIBSVM file, plain or compressed.

    Parameters
    ----------
    path
        Path of the file. Text after ``#`` and empty lines are ignored.
    features
        Number of features; ``None`` counts up to the largest index that occurs.
    limits
        Limits on the size of the text and of the values.
    first
        Index of the first feature; ``None`` for 0 if the index 0 occurs, as in files of scikit-learn, otherwise 1.

    Returns
    -------
    Samples
        CSR features in float64 without stored zeros, and labels in float64.

    Raises
    ------
    DataError
        If a line has another format, the file has no samples or too many features, or exceeds the limits.
    """
    labels = array("d")
    values = array("d")
    indices = array("i")
    starts = array("q", [0])
    number = 0
    longest = limits.bytes // _LINE_SHARE
    before_first = -1 if first is None else first - 1
    with opened(path, limits) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(longest + 1), b""), start=1):
            if len(line) > longest:
                raise DataError(
                    f"the line has more than {longest:,} bytes; expected one line for each sample",
                    source=path,
                    row=number,
                )
            content = line.partition(b"#")[0].split()
            if not content:
                continue
            try:
                labels.append(float(content[0]))
                pairs = [item.split(b":") for item in content[1:]]
                row = [int(index) for index, _ in pairs]
                values.extend([float(value) for _, value in pairs])
                indices.extend(row)
                in_order = all(after > before for before, after in zip([before_first, *row], row, strict=False))
            except (ValueError, OverflowError):
                in_order = False
            if not in_order:
                shown = b" ".join(content)[:_SHOWN].decode("utf-8", errors="replace")
                remedy = (
                    "" if first is None else f"; if your file numbers features from {first - 1}, add 1 to each index"
                )
                raise DataError(
                    f"{shown!r} is not of the form 'label index:value index:value ...'; expected numbers, and "
                    f"increasing indices from {'0 or 1' if first is None else first} to {_MAX_INDEX}{remedy}",
                    source=path,
                    row=number,
                )
            starts.append(len(indices))
            limits.require_bytes(_PAIR_BYTES * len(indices) + _ROW_BYTES * len(labels), path)
    if not labels:
        raise DataError(f"{number} lines have no sample; expected lines such as '+1 3:0.5 17:1'", source=path)
    columns = np.asarray(indices)
    if first is None:
        first = 0 if columns.size and columns.min() == 0 else 1
    columns = columns - first
    largest = int(columns.max()) + 1 if columns.size else 0
    if features is not None and largest > features:
        raise DataError(
            f"the file has feature {largest}, but the run has only {features}; expected at most {features}", source=path
        )
    shape = (len(labels), largest if features is None else features)
    matrix = scipy.sparse.csr_array((np.array(values), columns, np.asarray(starts)), shape=shape)
    matrix.eliminate_zeros()
    return samples(matrix, np.array(labels), str(path))
