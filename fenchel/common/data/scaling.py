"""Scaling of features, which is fitted on training samples and applied to any samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from fenchel.common.arrays import Matrix, is_sparse
from fenchel.common.data.samples import RawMatrix, listed
from fenchel.common.errors import DataError
from fenchel.common.settings.data import NormaliseSettings, Scaling

_CHUNK = 4096


@dataclass(frozen=True)
class Columns:
    """Step that shifts and divides every column: (x - shift) / spread.

    Attributes
    ----------
    shift
        Shift of each column, shape (m,), float64; zeros if the features are sparse.
    spread
        Divisor of each column, shape (m,), float64, positive.
    """

    shift: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True)
class UnitRows:
    """Step that divides every row, except rows of zeros, by its Euclidean norm."""


Step: TypeAlias = Columns | UnitRows
"""Fitted step."""


def constants(settings: NormaliseSettings | None, columns: int, names: Sequence[str] | None) -> Columns | None:
    """Return the step ``normalise``.

    Parameters
    ----------
    settings
        Constants of the step; ``None`` for no such step.
    columns
        Number m of features.
    names
        Names of the features; ``None`` if they have none.

    Raises
    ------
    DataError
        If the constants do not fit the columns.
    """
    if settings is None:
        return None
    shift = _each(settings.mean, 0.0, "mean", columns, names)
    return Columns(shift, _each(settings.std, 1.0, "std", columns, names))


def _each(
    given: float | Sequence[float] | Mapping[str, float],
    other: float,
    key: str,
    columns: int,
    names: Sequence[str] | None,
) -> NDArray[np.float64]:
    """Return a constant for each column, shape (m,), which is ``other`` for columns that ``given`` does not name."""
    key = f"data.normalise.{key}"
    if isinstance(given, Mapping):
        if names is None:
            raise DataError("the numbers are given by column names, but the columns have none; give a list", key=key)
        known = set(names)
        if unknown := [name for name in given if name not in known]:
            raise DataError(f"the data have no column {unknown[0]!r}; the columns are {listed(names)}", key=key)
        return np.array([given.get(name, other) for name in names], np.float64)
    if isinstance(given, Sequence) and len(given) != columns:
        raise DataError(f"{len(given)} numbers given for {columns} columns; give one for each", key=key)
    return np.broadcast_to(np.asarray(given, np.float64), (columns,)).copy()


def fit(
    scalings: Sequence[Scaling], features: RawMatrix, peak: float | None, normalise: Columns | None = None
) -> tuple[Step, ...]:
    """Fit steps on training features, each on the output of the steps before it.

    Parameters
    ----------
    scalings
        Steps in order.
    features
        Training features as stored, shape (n, m).
    peak
        Largest possible value of a pixel; ``None`` if features are not pixels.
    normalise
        Step ``normalise`` from :func:`constants`, if it is among the steps.

    Raises
    ------
    DataError
        If a step would make the zeros of sparse features non-zero.
    """
    steps: list[Step] = []
    columns = int(features.shape[1])
    for scaling in scalings:
        if scaling == "unit-rows":
            steps.append(UnitRows())
        elif scaling == "normalise":
            assert normalise is not None
            if is_sparse(features) and normalise.shift.any():
                raise DataError(
                    "a mean would make every zero of sparse features non-zero; give std alone", key="data.normalise"
                )
            steps.append(normalise)
        elif scaling == "standard":
            if is_sparse(features):
                raise DataError(
                    "standard would make every zero of sparse features non-zero; use unit-interval or unit-rows",
                    key="data.scale",
                )
            steps.append(_standard(steps, features))
        elif peak is not None and not steps:
            # All pixels share one scale, unless an earlier preparation step has changed their values.
            steps.append(Columns(np.zeros(columns), np.full(columns, peak)))
        else:
            steps.append(_unit_interval(steps, features))
    return tuple(steps)


def apply(steps: Sequence[Step], features: RawMatrix, dtype: DTypeLike, bias: float | None = None) -> Matrix:
    """Return features after the fitted steps, with the bias feature appended.

    Parameters
    ----------
    steps
        Fitted steps in order.
    features
        Features as stored, shape (n, m).
    dtype
        Floating-point type of the result. All arithmetic is in float64.
    bias
        Value of the appended constant feature; ``None`` for none.

    Returns
    -------
    Matrix
        Shape (n, m) or (n, m + 1), dense or CSR like ``features``.
    """
    if is_sparse(features):
        result = features.astype(np.float64)
        for step in steps:
            result = _sparse_step(step, result)
        if bias is not None:
            column = scipy.sparse.csr_array(np.full((result.shape[0], 1), bias))
            result = scipy.sparse.csr_array(scipy.sparse.hstack([result, column]))
        values = result.data.astype(dtype)
        return scipy.sparse.csr_array((values, result.indices, result.indptr), shape=result.shape)
    samples, columns = features.shape
    dense = np.empty((samples, columns + (bias is not None)), dtype)
    for start, chunk in _chunks(steps, features):
        dense[start : start + len(chunk), :columns] = chunk
    if bias is not None:
        dense[:, columns] = bias
    return dense


def _standard(steps: Sequence[Step], features: NDArray[Any]) -> Columns:
    samples = features.shape[0]
    mean = sum(chunk.sum(axis=0) for _, chunk in _chunks(steps, features)) / samples
    variance = sum(((chunk - mean) ** 2).sum(axis=0) for _, chunk in _chunks(steps, features)) / samples
    deviation = np.sqrt(variance)
    # The mean of a constant column may be inexact, and the column's deviation is then a mere rounding error.
    constant = deviation <= 1e-12 * np.abs(mean)
    return Columns(np.asarray(mean), np.where(constant, 1.0, deviation))


def _unit_interval(steps: Sequence[Step], features: RawMatrix) -> Columns:
    columns = int(features.shape[1])
    if is_sparse(features):
        result = apply(steps, features, np.float64)
        assert is_sparse(result)
        if result.nnz and result.data.min() < 0:
            raise DataError(
                "unit-interval would make the zeros of sparse features with negative values non-zero; use unit-rows",
                key="data.scale",
            )
        largest = np.zeros(columns)
        np.maximum.at(largest, result.indices, result.data)
        return Columns(np.zeros(columns), np.where(largest > 0, largest, 1.0))
    low, high = np.full(columns, np.inf), np.full(columns, -np.inf)
    for _, chunk in _chunks(steps, features):
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
    return Columns(low, np.where(high > low, high - low, 1.0))


def _chunks(steps: Sequence[Step], features: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield chunks of scaled samples in float64 with the position of the first, so that images stay bytes in memory."""
    for start in range(0, features.shape[0], _CHUNK):
        chunk = features[start : start + _CHUNK].astype(np.float64)
        for step in steps:
            if isinstance(step, Columns):
                chunk -= step.shift
                chunk /= step.spread
            else:
                norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
                chunk /= np.where(norms > 0, norms, 1.0)[:, np.newaxis]
        yield start, chunk


def _sparse_step(step: Step, features: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    result = features.copy()
    if isinstance(step, Columns):
        result.data /= step.spread[result.indices]
    else:
        norms = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
        result.data /= np.repeat(np.where(norms > 0, norms, 1.0), np.diff(features.indptr))
    return result
