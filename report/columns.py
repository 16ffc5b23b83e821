"""What the columns of ``metrics.parquet`` are called, and what their figures mean to a reader.

The server writes these tables and the report reads them in other versions and other places, so the names
are stated here once more; a test compares them with what a run really writes.
"""

from __future__ import annotations

import pyarrow as pa

COUNTS = (
    "round",
    "asked",
    "counted",
    "late",
    "failed",
    "connected",
    "bytes_down",
    "bytes_up",
    "wire_down",
    "wire_up",
)
TIMES = ("seconds", "compute_s", "coding_s", "network_s", "waiting_s", "evaluation_s", "unix")
EVALUATION = (
    "objective",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "holdout_loss",
    "holdout_accuracy",
)
SPLITS = ("train", "test", "holdout")


def figures(metrics: pa.Table) -> list[str]:
    """Return the columns that say how good the model is: the evaluation's, then the algorithm's own."""
    own = [name for name in metrics.column_names if name not in {*COUNTS, *TIMES, *EVALUATION}]
    return [name for name in EVALUATION if name in metrics.column_names] + own


def title(figure: str) -> str:
    """Return how a figure is called in a heading, such as ``Test accuracy``."""
    return figure.replace("_", " ").capitalize()


def is_share(figure: str) -> bool:
    """Whether a figure lies between 0 and 1 and is read as a percentage."""
    return figure.endswith("accuracy")
