"""Columns of a run's tables: access, titles, and kinds of figures."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fenchel.common.objectives.metrics import FIGURES
from fenchel.common.storage.call_columns import TAKING
from fenchel.common.storage.round_columns import COUNTS, SOCKETS, TIMES

Floats = NDArray[np.float64]

CLIENT_ACCURACY = {
    "worst": "client_accuracy_worst",
    "worst tenth": "client_accuracy_worst_tenth",
    "mean": "client_accuracy_mean",
}
"""Labels of the accuracies of clients that one chart shows, with their columns."""
SPLITS = ("train", "test", "holdout")
KINDS = {"loss": "Loss", "accuracy": "Accuracy", "auc": "AUC", "auc_error": "AUC error bound"}
"""Kinds of figures that one chart shows for all splits, such as ``loss`` for ``test_loss``, with the chart's title."""


def column(table: pa.Table, name: str) -> Floats:
    """Return a column as numbers, with nan for missing values or a missing column."""
    if name not in table.column_names:
        return np.full(table.num_rows, math.nan)
    return np.asarray(table[name].cast(pa.float64(), safe=False).to_numpy(), np.float64)


def grouped(table: pa.Table, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column, in the order of their first rows, and the index of each row's text."""
    encoded = pc.fill_null(table[name], "").combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def sums_by(values: Floats, group: NDArray[np.int64], groups: int) -> Floats:
    """Return the sum of the known values of each group, shape (groups,), or nan if none is known.

    Parameters
    ----------
    values
        Values, shape (n,).
    group
        Number of each value's group, shape (n,).
    groups
        Number of groups.
    """
    known = np.isfinite(values)
    sums = np.bincount(group[known], weights=values[known], minlength=groups)
    return np.where(np.bincount(group[known], minlength=groups) > 0, sums, np.nan)


def until_taken(calls: pa.Table) -> Floats:
    """Return the seconds from the queueing of each call until its reply was part of the result."""
    return column(calls, "total_s") + sum(np.nan_to_num(column(calls, name)) for name in TAKING)


def until_over(calls: pa.Table) -> Floats:
    """Return the seconds from the queueing of each call until the end of its request."""
    return until_taken(calls) + np.nan_to_num(column(calls, "waiting_s"))


def figures(metrics: pa.Table) -> list[str]:
    """Return the names of the columns of figures: first figures of the evaluation, then figures of the algorithm."""
    own = [name for name in metrics.column_names if name not in {*COUNTS, *SOCKETS, *TIMES, *FIGURES}]
    return [name for name in FIGURES if name in metrics.column_names] + own


def objective(known: Collection[str]) -> str:
    """Return the name of the column of the objective, from the evaluation or otherwise from the algorithm.

    If a model is encrypted until the end, the server cannot evaluate it, but the algorithm may report an objective.
    """
    return "primal_objective" if "objective" not in known and "primal_objective" in known else "objective"


_TITLES = {
    "uniform_objective": "Objective, all clients alike",
    "train_auc": "Train AUC",
    "train_auc_error": "Train AUC error bound",
    "test_auc": "Test AUC",
    "test_partial_auc": "Test partial AUC",
    "holdout_auc": "Holdout AUC",
    "holdout_auc_error": "Holdout AUC error bound",
    "privacy_uploads": "Uploads of a client, at most",
    "epsilon_round": "Epsilon of one upload, had it used all samples",
    "epsilon_paper": "Epsilon claimed by the paper's formula (no guarantee)",
    "epsilon_pld": "Epsilon of all uploads (PLD)",
    "epsilon_rdp": "Epsilon of all uploads (RDP)",
}


def title(figure: str) -> str:
    """Return the title of a figure, such as ``Test accuracy``."""
    return _TITLES.get(figure, figure.replace("_", " ").capitalize())


def is_gap(figure: str) -> bool:
    """Return True if a figure decreases to zero over many orders of magnitude, and needs a logarithmic axis."""
    return figure == "gap" or figure.endswith("_gap")


def is_share(figure: str) -> bool:
    """Return True if a figure is between 0 and 1, and is shown as a percentage."""
    return figure.endswith("accuracy") or figure.startswith("client_accuracy_") or is_ranking(figure)


def is_ranking(figure: str) -> bool:
    """Return True if a figure measures the ranking of samples, so that small differences matter."""
    return figure.endswith(("_auc", "_auc_error", "_average_precision"))
