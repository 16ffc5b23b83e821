"""Conversion of stored labels to class indices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.errors import DataError


def class_names(labels: Iterable[NDArray[Any]], where: str) -> tuple[str, ...]:
    """Return the names of the classes that occur, sorted by value if all are numbers, otherwise alphabetically.

    Parameters
    ----------
    labels
        Arrays of labels, each of shape (n,).
    where
        Name of the data, for errors.

    Raises
    ------
    DataError
        If there are fewer than two classes, or a number is not an integer.
    """
    found = [np.unique(part) for part in labels]
    if all(part.dtype.kind in "biuf" for part in found):
        values = np.unique(np.concatenate(found))
        if values.dtype.kind == "f" and (values != np.floor(values)).any():
            fraction = values[values != np.floor(values)][0]
            raise DataError(
                f"the label {fraction} is not a whole number and cannot be a class; set data.task: regression to "
                "predict numbers",
                source=where,
                key="data.task",
            )
        names = [str(int(value)) for value in values]
    else:
        names = sorted({name for part in found for name in _as_names(part)})
    if len(names) < 2:
        raise DataError(
            f"all labels are {names[0]!r}; expected at least two classes (if other clients have the others, list "
            "all classes in data.classes)",
            source=where,
        )
    return tuple(names)


def encode(labels: NDArray[Any], names: Sequence[str], where: str) -> Indices:
    """Return the class index of each label, shape (n,), int64, or raise a ``DataError`` for an unknown label.

    Labels that are numbers are compared by value: 1 is of class ``01``, unless there is a class ``1`` as well.
    """
    values, inverse = np.unique(labels, return_inverse=True)
    number = {name: index for index, name in enumerate(names)}
    if values.dtype.kind != "U":
        by_value = {_without_zeros(name): index for index, name in enumerate(names)}
        number = by_value if len(by_value) == len(names) else number
    indices = []
    for name in _as_names(values):
        if name not in number:
            raise DataError(
                f"the label {name!r} is not a class of data.classes; expected one of {', '.join(names)}",
                source=where,
                key="data.classes",
            )
        indices.append(number[name])
    return np.array(indices, np.int64)[inverse]


def numbers(labels: NDArray[Any], where: str) -> NDArray[np.float64]:
    """Return numeric labels as float64, shape (n,), or raise a ``DataError`` for labels of another type."""
    if labels.dtype.kind not in "biuf":
        raise DataError(
            f"regression given, but the label {str(labels[0])!r} is not a number; use task: classification",
            source=where,
            key="data.task",
        )
    return labels.astype(np.float64)


def encoded(
    parts: Sequence[NDArray[Any]],
    task: Literal["classification", "regression"],
    classes: Sequence[int | str] | None,
    where: str,
) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
    """Return labels as class indices or, for regression, as floats, and the class names.

    Parameters
    ----------
    parts
        Arrays of labels as stored, such as those of training and test samples, each of shape (n,).
    classes
        All class names in order; ``None`` for those that occur.
    where
        Name of the data, for errors.

    Returns
    -------
    tuple[list[NDArray[Any]], tuple[str, ...]]
        Converted arrays, and the class names, which are empty for regression.
    """
    if task == "regression":
        return [numbers(part, where) for part in parts], ()
    names = class_names(parts, where) if classes is None else tuple(map(str, classes))
    return [encode(part, names, where) for part in parts], names


def binarised(names: Sequence[str], positive: Sequence[str], where: str) -> tuple[tuple[str, str], Indices]:
    """Merge classes into a negative and a positive class.

    Parameters
    ----------
    names
        Names of all classes.
    positive
        Names of the classes that form the positive class.
    where
        Name of the data, for errors.

    Returns
    -------
    tuple[tuple[str, str], Indices]
        Names of the two new classes, and the new class, 0 or 1, of each old class, shape (classes,).

    Raises
    ------
    DataError
        If a positive class does not exist, or all classes are positive.
    """
    for name in positive:
        if name not in names:
            raise DataError(
                f"{name!r} is not a class of the data set; expected some of {', '.join(names)}",
                source=where,
                key="data.binarise.positive",
            )
    new = np.array([name in positive for name in names], np.int64)
    if new.all():
        raise DataError(
            "all classes given; leave out at least one, which is the negative class",
            source=where,
            key="data.binarise.positive",
        )
    rest = [name for name in names if name not in positive]
    return (" ".join(rest) if len(rest) == 1 else "rest", "+".join(positive)), new


def _without_zeros(name: str) -> str:
    """Return the name of a class without leading zeros if it is a whole number."""
    return str(int(name)) if re.fullmatch(r"-?[0-9]{1,18}", name) else name


def _as_names(values: NDArray[Any]) -> list[str]:
    whole = values.dtype.kind in "bf"
    return [str(int(value)) if whole and value == np.floor(value) else str(value) for value in values]
