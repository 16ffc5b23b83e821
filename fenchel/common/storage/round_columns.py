"""What the columns of ``metrics.parquet`` are called, a row a round: the server writes them, the report reads them.

They stand in the file in the order of this page: counts, sockets, times. The figures of the model follow them
(:data:`fenchel.common.objectives.metrics.FIGURES`, then the algorithm's own).
"""

from __future__ import annotations

COUNTS = ("round", "asked", "counted", "late", "failed", "connected", "bytes_down", "bytes_up", "wire_down", "wire_up")
"""Integers."""

SOCKETS = ("socket_down", "socket_up")
"""Bytes on the connections; nan where the operating system does not say."""

PARTS = ("compute", "encryption", "coding", "network", "queueing", "away", "waiting", "server")
"""What a round's seconds were spent on, as far as they are accounted for; the column of each ends in ``_s``."""

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
"""Seconds, and seconds since 1970."""
