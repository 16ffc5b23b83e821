"""Names of the columns of ``metrics.parquet``, which has one row for each round.

The server writes the file, and the report reads it. Columns are in the order of this module: counts, sockets, times.
The figures of the model follow (:data:`fenchel.common.objectives.metrics.FIGURES`, then the algorithm's own).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

COUNTS = ("round", "asked", "counted", "late", "failed", "connected", "bytes_down", "bytes_up", "wire_down", "wire_up")
"""Integer columns."""

SOCKETS = ("socket_down", "socket_up")
"""Columns of the bytes on the connections, nan if the operating system does not report them."""

PARTS = ("compute", "encryption", "coding", "network", "queueing", "away", "waiting", "server")
"""Parts of a round's time, in seconds. The column of each part has the suffix ``_s``."""

TIMES = (
    "seconds",
    *(f"{part}_s" for part in (*PARTS, "unaccounted")),
    "serialisation_s",
    "propagation_s",
    "idle_s",
    "evaluation_s",
    "checkpoint_s",
    "started_unix",
    "checkpoint_unix",
    "unix",
)
"""Columns in seconds, and in seconds since 1970 (``_unix``)."""

Row: TypeAlias = Mapping[str, float]
"""Figures of one round, a row of ``metrics.parquet``."""
